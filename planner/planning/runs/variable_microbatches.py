"""Microbatches that differ: pipelines laid out as for equal ones, then dealt, ordered and cut anew by playing.

Baselines first; then every number of pipelines with the cuts that are best at the mean size; the best of these are
annealed, and their cuts shifted. Without a dealing, the plan of the usual search for the mean size is played in other
orders of the microbatches. These are the steps of a run; `planner.planning.runs.driver` takes them.
"""

import math
import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from planner.annealed_dealing import AnnealingParams, anneal
from planner.baselines.listed import is_cut_as_placed, listed_baselines, usual_problem, usual_size
from planner.baselines.registry import play_baseline
from planner.bounds.listed.listed_bound import ListedLeast
from planner.device_subsets import problem_on
from planner.errors import InfeasibleProblemError, PipeplanError, PlanError
from planner.evidence.certificate import make_bound, prove_infeasible
from planner.plan import BaselineResult, Plan, Stage
from planner.planning.evidence import finish, require_not_refuted
from planner.planning.runs.run import (
    BASELINES,
    BOUND,
    START,
    begin_run,
    bound_and_lay_out,
    ignore,
    make_first_plans,
    search,
)
from planner.planning.search_state import SearchState
from planner.planning.starts.dealt_layouts import (
    AssignmentTable,
    carried_over,
    cuts_for,
    device_blocks,
    longest_first,
    stages_on,
)
from planner.problem import Problem
from planner.simulation.simulate import simulate

_BASELINE_SHARE = 0.25
"""Part of the time limit for baselines."""
_LAYOUT_SHARE = 0.6
"""Part of it after which no further numbers of pipelines are looked at."""
_USUAL_SHARE = 0.25
"""Part of it for the search that takes all microbatches for equal."""
_KEPT_LAYOUTS = 4
"""Layouts that are annealed and cut anew."""
_ASSIGNED, _USUAL = "dealing", "search at the mean size"
"""Who is said to have found a plan: the search of assignments, or the usual one for equal microbatches."""


@dataclass(kw_only=True)
class _BalancedLayout:
    """A layout with the best assignments so far."""

    table: AssignmentTable
    assignments: list[list[int]]
    end_ns: int


def make_first_listed_plans(run: SearchState, start: Plan | None) -> None:
    """The plan to start from, then every baseline with the real sizes: the best that fits becomes the incumbent."""
    if start is not None:
        with run.step_of(START):
            _offer(run, replace(start, problem=run.problem.reference(), evidence=None), source=START)
    with run.step_of(BASELINES):
        _play_baselines(run)


def _play_baselines(run: SearchState) -> None:
    fitting: list[tuple[int, int, Plan]] = []
    for baseline in listed_baselines(run.problem, run.costs, has_time=lambda: _has_time(run, _BASELINE_SHARE)):
        try:
            row, _ = play_baseline(run.problem, baseline, costs=run.costs)
        except (PlanError, ValueError) as error:
            row = BaselineResult(name=baseline.name, makespan_ns=None, note=str(error)[:120])
        run.baselines.append(row)
        objective = row.objective_ns(run.problem.options.objective)
        if baseline.plan is not None and row.fits_memory and objective is not None:
            fitting.append((objective, len(run.baselines) - 1, baseline.plan))
    for _, number, plan in sorted(fitting, key=lambda entry: entry[:2]):
        name = run.baselines[number].name
        if _offer(run, plan, source=name, improver=BASELINES) and not run.witnesses:
            break


def bound_listed(run: SearchState, layouts: None) -> None:
    """The bound, all of which is quick."""
    del layouts
    with run.step_of(BOUND):
        run.lower_bound = make_bound(run.problem, run.costs)
    run.report("bound")


def search_listed(run: SearchState) -> Generator[None, None, None]:
    """Layouts, the usual search at the mean size, then steps of annealing; it yields wherever the run may be left."""
    if run.is_over():
        return
    run.begin_search()
    with run.step_of(_ASSIGNED):
        layouts = _first_layouts(run)
    yield
    with run.step_of(_USUAL):
        usual = _plan_usual(run) if _should_try_usual(run) else None
        if usual is not None and not run.is_over():
            _reorder(run, usual)
    yield
    yield from _improve(run, layouts)


def _has_time(run: SearchState, share: float = 1.0) -> bool:
    """Whether less than a part of the time has passed, and nobody wants an end; rounds are no time."""
    is_in_time = run.limits.max_rounds is not None or run.elapsed_s < share * run.limits.time_limit_s
    return is_in_time and not run.should_stop()


def _offer(run: SearchState, plan: Plan, *, source: str, improver: str | None = None) -> bool:
    """Take a plan that is better than the incumbent and that the verifier passes; whether it was."""
    try:
        timeline = simulate(run.problem, plan, costs=run.costs)
    except (PipeplanError, ValueError) as error:
        run.dropped.add(str(error))
        return False
    run.show(plan, timeline, source=source)
    rejected = run.rejected
    is_better = run.offer(plan, timeline, source=source, improver=improver)
    if run.rejected is not None and run.rejected is not rejected:
        # an order that was made for other sizes may need more memory than there is: no mistake of ours
        run.dropped.add(run.rejected.violations[0].message)
        run.rejected = rejected
    if is_better:
        run.report("search")
    return is_better


def _should_try_usual(run: SearchState) -> bool:
    """Whether a plan without a dealing may be better: where no replicas cut all sizes, it has a device per layer."""
    best = run.incumbent_ns
    if run.is_over() or not is_cut_as_placed(run.problem) or not _has_time(run, _LAYOUT_SHARE):
        return False
    if best is None or run.lower_bound is None or usual_problem(run.problem).options.max_replicas != 1:
        return True
    devices, layers = len(run.problem.cluster.devices), len(run.problem.profile.layers)
    work = sum(sum(load) for load in _work_of(run))
    return work < best * min(devices, layers)


def _work_of(run: SearchState) -> Iterator[list[int]]:
    """Per size that occurs, once for every microbatch: the least work of every layer."""
    least = ListedLeast(run.costs)
    totals = {size: [int(value) for value in one.time.total] for size, one in least.at.items()}
    yield from (totals[size] for size in least.listed)


def _plan_usual(run: SearchState) -> Plan | None:
    """What the usual search makes of as many microbatches of the mean size."""
    usual = usual_problem(run.problem)
    try:
        plan = _plan_equal(run, usual, share=_USUAL_SHARE)
    except PipeplanError:
        return None
    plan = replace(plan, problem=run.problem.reference(), evidence=None)
    _offer(run, plan, source=_USUAL)
    return plan


def _plan_equal(run: SearchState, problem: Problem, *, share: float) -> Plan:
    """The plan of the usual search for equal microbatches, in a part of the time; raises where there is none."""
    seconds = max(0.5, share * run.limits.time_limit_s)
    limits = replace(run.limits, time_limit_s=min(seconds, run.limits.time_limit_s), gap=max(run.limits.gap, 0.001))
    usual = begin_run(problem, limits, on_progress=ignore, should_stop=run.should_stop, target=None, params=run.params)
    if reason := prove_infeasible(problem, usual.costs):
        raise InfeasibleProblemError(reason)
    with usual.watch, usual.collected_rarely(), closing(usual.window):
        bound_and_lay_out(usual, make_first_plans(usual, None))
        require_not_refuted(usual)
        for _ in search(usual):
            pass
        return finish(usual)


def _first_layouts(run: SearchState) -> list[_BalancedLayout]:
    """Every number of pipelines, cut for the mean size, dealt quickly; the best first."""
    found: list[_BalancedLayout] = []
    work = sum(map(sum, _work_of(run)))
    for pipelines in range(min(run.problem.replica_limit, run.problem.num_microbatches), 0, -1):
        for stages in _stages_for(run, pipelines):
            used = len({device for stage in stages for group in stage.replicas for device in group})
            is_in_time = _has_time(run, _LAYOUT_SHARE if found else 1.0)
            if is_in_time and not any(work >= layout.end_ns * used for layout in found):
                found += _balanced(run, stages)
    found.sort(key=lambda layout: layout.end_ns)
    for layout in found[:_KEPT_LAYOUTS]:
        _offer(run, layout.table.plan(layout.assignments), source=_ASSIGNED)
    if found and not run.is_over():
        found += _searched(run, len(found[0].assignments))
        found.sort(key=lambda layout: layout.end_ns)
    return found[:_KEPT_LAYOUTS]


def _stages_for(run: SearchState, pipelines: int) -> Iterator[tuple[Stage, ...]]:
    """Stages on so many rows of devices; as placed, where that is decided."""
    given = run.problem.given_stages
    if given is not None:
        if {len(stage.replicas) for stage in given} == {pipelines}:
            yield from _variants(run, given)
        return
    blocks = device_blocks(run.problem, pipelines)
    if blocks:
        at_mean = run.costs.at(usual_size(run.problem))
        for cut in cuts_for(at_mean, blocks[0]):
            yield from _variants(run, stages_on(cut, blocks))


def _variants(run: SearchState, stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """With and without recomputation and shards, as the options allow."""
    options = run.problem.options
    for recompute in (False, True) if options.recompute else (False,):
        for shard in options.shards(len(stages[0].replicas)):
            yield tuple(replace(stage, recompute=recompute, shard=shard) for stage in stages)


def _balanced(run: SearchState, stages: tuple[Stage, ...]) -> list[_BalancedLayout]:
    """The layout with the best of the depths, dealt longest first and annealed for a moment."""
    best: _BalancedLayout | None = None
    first = AssignmentTable(costs=run.costs, stages=stages)
    for depth in run.params.listed.depths:
        for fuses in (True, False) if run.problem.options.split_backward else (True,):
            try:
                _ = first.tables  # ValueError where a layer was not measured there
                table = first.run_otherwise(depth=depth, fuses=fuses)
                assignments = longest_first(table, len(stages[0].replicas))
                fits = table.fits(assignments)
            except ValueError:
                return []
            if fits:
                end = max(map(table.play, assignments))
                if best is None or end < best.end_ns:
                    best = _BalancedLayout(table=table, assignments=assignments, end_ns=end)
    if best is None:
        return []
    _anneal(best, plays=run.params.listed.quick_plays, seed=run.limits.seed)
    return [best]


def _searched(run: SearchState, pipelines: int) -> list[_BalancedLayout]:
    """The stages that the usual search makes on one row of devices, for a pipeline's part of the microbatches."""
    blocks = device_blocks(run.problem, pipelines)
    options = run.problem.options
    if pipelines == 1 or not blocks or options.placement is not None or options.pinned:
        return []
    count = -(-run.problem.num_microbatches // pipelines)
    alone = problem_on(run.problem.at_size(usual_size(run.problem), count=count), blocks[0])
    alone = replace(alone, options=replace(alone.options, max_replicas=1, shard_optimizer="never", idle_devices=True))
    try:
        plan = _plan_equal(run, alone, share=_USUAL_SHARE / 2)
    except (PipeplanError, ValueError):
        return []
    return [found for stages in _variants(run, carried_over(plan.stages, blocks)) for found in _balanced(run, stages)]


def _anneal(layout: _BalancedLayout, *, plays: int, seed: int) -> None:
    """Better assignments for the layout, if such are found."""
    params = AnnealingParams(plays=plays, seed=seed)
    assignments = anneal(
        layout.assignments,
        play=lambda assignment: layout.table.play(assignment) if assignment else _NEVER,
        params=params,
    )
    if all(assignments):
        end = max(map(layout.table.play, assignments))
        if end < layout.end_ns:
            layout.assignments, layout.end_ns = assignments, end


_NEVER = 1 << 50
"""When a pipeline ends that is dealt nothing: it has to be dealt something."""


def _improve(run: SearchState, layouts: list[_BalancedLayout]) -> Generator[None, None, None]:
    """Anneal the layouts in turn, shifting their cuts, until time or rounds are over or the gap is closed."""
    rng = random.Random(run.limits.seed)
    most = math.inf if run.limits.max_rounds is None else run.limits.max_rounds
    while layouts and run.rounds < most and not run.is_over():
        with run.step_of(_ASSIGNED):
            _improve_one(run, layouts, rng=rng)
        run.report("search")
        yield


def _improve_one(run: SearchState, layouts: list[_BalancedLayout], *, rng: random.Random) -> None:
    """Shift a cut of one of the layouts, if that is better, and anneal its assignments."""
    layout = layouts[0] if rng.random() < 0.5 else rng.choice(layouts)
    other = _shifted(run, layout, rng=rng)
    if other is not None and other.end_ns < layout.end_ns:
        layout.table, layout.assignments, layout.end_ns = other.table, other.assignments, other.end_ns
    _anneal(layout, plays=run.params.listed.turn_plays, seed=run.limits.seed + run.rounds)
    run.rounds += 1
    _offer(run, layout.table.plan(layout.assignments), source=_ASSIGNED)
    layouts.sort(key=lambda each: each.end_ns)


def _shifted(run: SearchState, layout: _BalancedLayout, *, rng: random.Random) -> _BalancedLayout | None:
    """The same with a layer moved from one stage to the next, or the other way; None where stages are decided."""
    stages = list(layout.table.stages)
    if len(stages) < 2 or run.problem.options.partition is not None:
        return None
    at = rng.randrange(len(stages) - 1)
    left, right = stages[at].layers, stages[at + 1].layers
    left, right = (left[:-1], left[-1:] + right) if rng.random() < 0.5 else (left + right[:1], right[1:])
    if not left or not right:
        return None
    for number, layers in ((at, left), (at + 1, right)):
        stages[number] = replace(stages[number], layers=layers, recompute=bool(stages[number].recompute))
    table = replace(layout.table, stages=tuple(stages))
    if not table.fits(layout.assignments):
        return None
    other = _BalancedLayout(
        table=table, assignments=layout.assignments, end_ns=max(map(table.play, layout.assignments))
    )
    _anneal(other, plays=run.params.listed.quick_plays, seed=run.limits.seed + run.rounds)
    return other


def _reorder(run: SearchState, plan: Plan) -> None:
    """The plan without a dealing, its microbatches in other orders."""
    listed = run.problem.microbatches or ()
    down = sorted(range(len(listed)), key=lambda m: -listed[m])
    orders: list[Sequence[int]] = [down, down[::-1], down[::2] + down[1::2][::-1], down[::2][::-1] + down[1::2]]
    for order in orders:
        if _has_time(run, _LAYOUT_SHARE):
            schedule = {
                device: tuple(action._replace(microbatch=order[action.microbatch]) for action in device_order)
                for device, device_order in plan.schedule.items()
            }
            _offer(run, replace(plan, schedule=schedule), source=f"{_USUAL}, reordered", improver=_USUAL)
