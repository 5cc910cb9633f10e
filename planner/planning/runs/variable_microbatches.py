"""Microbatches that differ: pipelines laid out as for equal ones, then dealt, ordered and cut anew by playing.

Baselines first; then every number of pipelines with the cuts that are best at the mean size; the best of these are
annealed, and their cuts shifted. Without a dealing, the plan of the usual search for the mean size is played in other
orders of the microbatches. What is returned is the best that the verifier passes.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from planner.annealed_dealing import AnnealingParams, anneal
from planner.baselines.listed import is_cut_as_placed, listed_baselines, usual_problem, usual_size
from planner.baselines.registry import play_baseline
from planner.bounds.listed.listed_bound import ListedLeast
from planner.device_subsets import problem_on
from planner.errors import NoPlanFoundError, PipeplanError, PlanError
from planner.evidence.certificate import Bound, make_bound
from planner.layout.costs import CostModel
from planner.plan import BaselineResult, Evidence, Plan, Stage
from planner.planning.evidence import bounded_evidence, what_makes_room
from planner.planning.planning_params import SearchParams
from planner.planning.runs import run as driver
from planner.planning.starts.dealt_layouts import (
    AssignmentTable,
    carried_over,
    cuts_for,
    device_blocks,
    longest_first,
    stages_on,
)
from planner.problem import Problem
from planner.progress import Limits, Progress
from planner.replanning.transition import Transition
from planner.simulation.simulate import Timeline, simulate
from planner.verify import verify

_BASELINE_SHARE = 0.25
"""Part of the time limit for baselines."""
_LAYOUT_SHARE = 0.6
"""Part of it after which no further numbers of pipelines are looked at."""
_USUAL_SHARE = 0.25
"""Part of it for the search that takes all microbatches for equal."""
_KEPT_LAYOUTS = 4
"""Layouts that are annealed and cut anew."""


@dataclass(kw_only=True)
class _BalancedLayout:
    """A layout with the best assignments so far."""

    table: AssignmentTable
    assignments: list[list[int]]
    end_ns: int


@dataclass(kw_only=True)
class _Run:
    """One planning run: the incumbent, and what is known."""

    problem: Problem
    costs: CostModel
    limits: Limits
    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]
    params: SearchParams
    transition: Transition | None = None
    begun_s: float = field(default_factory=time.monotonic)
    plan: Plan | None = None
    timeline: Timeline | None = None
    source: str = ""
    bound: Bound | None = None
    baselines: list[BaselineResult] = field(default_factory=list)
    rejected: str = ""
    steps: int = 0

    @property
    def elapsed_s(self) -> float:
        """Since the call."""
        return time.monotonic() - self.begun_s

    def has_time(self, share: float = 1.0) -> bool:
        """Whether less than a part of the time has passed, and nobody wants an end; rounds are no time."""
        is_in_time = self.limits.max_rounds is not None or self.elapsed_s < share * self.limits.time_limit_s
        return is_in_time and not self.should_stop()

    @property
    def objective_ns(self) -> int | None:
        """Of the incumbent."""
        return None if self.timeline is None else self.timeline.objective_ns(self.problem.options.objective)

    def offer(self, plan: Plan, *, source: str) -> bool:
        """Take a plan that is better than the incumbent and that the verifier passes; whether it was."""
        try:
            timeline = simulate(self.problem, plan, costs=self.costs)
        except (PipeplanError, ValueError) as error:
            self.rejected = str(error)
            return False
        if self.plan is not None and self._objective(plan, timeline) >= self._objective(self.plan, self.timeline):
            return False
        verdict = verify(self.problem, plan)
        if not verdict.passed:
            self.rejected = verdict.violations[0].message
            return False
        self.plan, self.timeline, self.source = plan, timeline, source
        self.report("search")
        return True

    def _objective(self, plan: Plan, timeline: Timeline | None) -> int:
        """The objective, or where a plan takes over from a running one, all that it costs; the least is best."""
        assert timeline is not None
        objective_ns = timeline.objective_ns(self.problem.options.objective)
        if self.transition is None:
            return objective_ns
        moving_ns = self.transition.moving_ns(self.problem, plan.stages)
        return self.transition.total_ns(iteration_ns=objective_ns, moving_ns=moving_ns)

    def report(self, phase: str) -> None:
        """Tell whoever listens."""
        best, bound = self.objective_ns, None if self.bound is None else self.bound.value_ns
        gap = None if best is None or bound is None else (best - bound) / max(best, 1)
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s,
                phase=phase,
                incumbent=self.plan,
                incumbent_ns=best,
                lower_bound_ns=bound,
                gap=gap,
                source=self.source,
            )
        )

    @property
    def is_closed(self) -> bool:
        """Whether the gap that is asked for is reached."""
        best = self.objective_ns
        return best is not None and self.bound is not None and best - self.bound.value_ns <= self.limits.gap * best


def make_listed_plan(problem: Problem, **how: Unpack[driver.PlanningOptions]) -> Plan:
    """The best verified plan found within the limits, never worse than any baseline that fits.

    Raises ValueError for what is only for equal microbatches, NoPlanFoundError if no plan was found.
    """
    limits = how.get("limits") or Limits()
    _require_listed_alone(limits, how)
    run = _Run(
        problem=problem,
        costs=CostModel(problem),
        limits=limits,
        on_progress=how.get("on_progress") or driver.ignore,
        should_stop=how.get("should_stop") or driver.never,
        params=how.get("params", SearchParams()),
        transition=how.get("transition"),
    )
    start = how.get("start")
    if start is not None:
        run.offer(replace(start, problem=problem.reference(), evidence=None), source=driver.START)
    _play_baselines(run)
    run.bound = make_bound(problem, run.costs)
    run.report("bound")
    layouts = _first_layouts(run)
    usual = _plan_usual(run) if _should_try_usual(run) else None
    if usual is not None and not run.is_closed:
        _reorder(run, usual)
    _improve(run, layouts)
    return _finish(run)


def _require_listed_alone(limits: Limits, how: driver.PlanningOptions) -> None:
    """Refuse what there is for equal microbatches only."""
    target = how.get("target")
    if target is not None:
        raise ValueError(f"target = {target}: only the executor runs different microbatches; leave the target out")
    if limits.method in ("cp-sat", "ilp"):
        raise ValueError(
            f"limits: method = {limits.method} is for equal microbatches; the question lists them (microbatches): "
            "give method = auto"
        )


def _play_baselines(run: _Run) -> None:
    """Every baseline with the real sizes; the best that fits and that the verifier passes is the first plan."""
    fitting: list[tuple[int, int, Plan]] = []
    for baseline in listed_baselines(run.problem, run.costs, has_time=lambda: run.has_time(_BASELINE_SHARE)):
        try:
            row, _ = play_baseline(run.problem, baseline, costs=run.costs)
        except (PlanError, ValueError) as error:
            row = BaselineResult(name=baseline.name, makespan_ns=None, note=str(error)[:120])
        run.baselines.append(row)
        objective = row.span_ns if run.problem.options.objective == "span" else row.makespan_ns
        if baseline.plan is not None and row.fits_memory and objective is not None:
            fitting.append((objective, len(run.baselines) - 1, baseline.plan))
    for _, number, plan in sorted(fitting, key=lambda entry: entry[:2]):
        if run.offer(plan, source=run.baselines[number].name):
            break


def _should_try_usual(run: _Run) -> bool:
    """Whether a plan without a dealing may be better: where no replicas cut all sizes, it has a device per layer."""
    best = run.objective_ns
    if run.is_closed or not is_cut_as_placed(run.problem) or not run.has_time(_LAYOUT_SHARE):
        return False
    if best is None or run.bound is None or usual_problem(run.problem).options.max_replicas != 1:
        return True
    devices, layers = len(run.problem.cluster.devices), len(run.problem.profile.layers)
    work = sum(sum(load) for load in _work_of(run))
    return work < best * min(devices, layers)


def _work_of(run: _Run) -> Iterator[list[int]]:
    """Per size that occurs, once for every microbatch: the least work of every layer."""
    least = ListedLeast(run.costs)
    totals = {size: [int(value) for value in one.time.total] for size, one in least.at.items()}
    yield from (totals[size] for size in least.listed)


def _plan_usual(run: _Run) -> Plan | None:
    """What the usual search makes of as many microbatches of the mean size."""
    usual = usual_problem(run.problem)
    try:
        plan, *_ = driver.make_plans(usual, top=1, limits=_part(run, _USUAL_SHARE), should_stop=run.should_stop)
    except PipeplanError:
        return None
    plan = replace(plan, problem=run.problem.reference(), evidence=None)
    run.offer(plan, source="search at the mean size")
    return plan


def _part(run: _Run, share: float) -> Limits:
    seconds = max(0.5, share * run.limits.time_limit_s)
    return replace(run.limits, time_limit_s=min(seconds, run.limits.time_limit_s), gap=max(run.limits.gap, 0.001))


def _first_layouts(run: _Run) -> list[_BalancedLayout]:
    """Every number of pipelines, cut for the mean size, dealt quickly; the best first."""
    found: list[_BalancedLayout] = []
    work = sum(map(sum, _work_of(run)))
    for pipelines in range(min(run.problem.replica_limit, run.problem.num_microbatches), 0, -1):
        for stages in _stages_for(run, pipelines):
            used = len({device for stage in stages for group in stage.replicas for device in group})
            is_in_time = run.has_time(_LAYOUT_SHARE if found else 1.0)
            if is_in_time and not any(work >= layout.end_ns * used for layout in found):
                found += _balanced(run, stages)
    found.sort(key=lambda layout: layout.end_ns)
    for layout in found[:_KEPT_LAYOUTS]:
        run.offer(layout.table.plan(layout.assignments), source="dealing")
    if found and not run.is_closed:
        found += _searched(run, len(found[0].assignments))
        found.sort(key=lambda layout: layout.end_ns)
    return found[:_KEPT_LAYOUTS]


def _stages_for(run: _Run, pipelines: int) -> Iterator[tuple[Stage, ...]]:
    """Stages on so many rows of devices; as placed, where that is decided."""
    options = run.problem.options
    if options.placement is not None and options.partition is not None:
        if {len(groups) for groups in options.placement} == {pipelines}:
            pairs = zip(options.partition, options.placement, strict=True)
            yield from _variants(run, tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs))
        return
    blocks = device_blocks(run.problem, pipelines)
    if blocks:
        at_mean = run.costs.at(usual_size(run.problem))
        for cut in cuts_for(at_mean, blocks[0]):
            yield from _variants(run, stages_on(cut, blocks))


def _variants(run: _Run, stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """With and without recomputation and shards, as the options allow."""
    options, several = run.problem.options, len(stages[0].replicas) > 1
    shards = {"never": ("none",), "always": ("optimizer",)}.get(options.shard_optimizer, ("none", "optimizer"))
    for recompute in (False, True) if options.recompute else (False,):
        for shard in shards if several else ("none",):
            yield tuple(replace(stage, recompute=recompute, shard=shard) for stage in stages)  # type: ignore[arg-type]


def _balanced(run: _Run, stages: tuple[Stage, ...]) -> list[_BalancedLayout]:
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


def _searched(run: _Run, pipelines: int) -> list[_BalancedLayout]:
    """The stages that the usual search makes on one row of devices, for a pipeline's part of the microbatches."""
    blocks = device_blocks(run.problem, pipelines)
    options = run.problem.options
    if pipelines == 1 or not blocks or options.placement is not None or options.pinned:
        return []
    count = -(-run.problem.num_microbatches // pipelines)
    alone = problem_on(run.problem.at_size(usual_size(run.problem), count=count), blocks[0])
    alone = replace(alone, options=replace(alone.options, max_replicas=1, shard_optimizer="never", idle_devices=True))
    try:
        plan, *_ = driver.make_plans(alone, top=1, limits=_part(run, _USUAL_SHARE / 2), should_stop=run.should_stop)
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


def _improve(run: _Run, layouts: list[_BalancedLayout]) -> None:
    """Anneal the layouts in turn, shifting their cuts, until time or rounds are over or the gap is closed."""
    rng = random.Random(run.limits.seed)
    most = run.limits.max_rounds if run.limits.max_rounds is not None else 10**9
    stale, patience = 0, run.limits.patience_rounds or most
    while layouts and run.steps < most and run.has_time() and not run.is_closed and stale < patience:
        layout = layouts[0] if rng.random() < 0.5 else rng.choice(layouts)
        other = _shifted(run, layout, rng=rng)
        is_better = False
        if other is not None and other.end_ns < layout.end_ns:
            layout.table, layout.assignments, layout.end_ns = other.table, other.assignments, other.end_ns
        _anneal(layout, plays=run.params.listed.turn_plays, seed=run.limits.seed + run.steps)
        run.steps += 1
        is_better = run.offer(layout.table.plan(layout.assignments), source="dealing")
        stale = 0 if is_better else stale + 1
        layouts.sort(key=lambda each: each.end_ns)
        run.report("search")


def _shifted(run: _Run, layout: _BalancedLayout, *, rng: random.Random) -> _BalancedLayout | None:
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
    _anneal(other, plays=run.params.listed.quick_plays, seed=run.limits.seed + run.steps)
    return other


def _reorder(run: _Run, plan: Plan) -> None:
    """The plan without a dealing, its microbatches in other orders."""
    listed = run.problem.microbatches or ()
    down = sorted(range(len(listed)), key=lambda m: -listed[m])
    orders: list[Sequence[int]] = [down, down[::-1], down[::2] + down[1::2][::-1], down[::2][::-1] + down[1::2]]
    for order in orders:
        if run.has_time(_LAYOUT_SHARE):
            schedule = {
                device: tuple(action._replace(microbatch=order[action.microbatch]) for action in device_order)
                for device, device_order in plan.schedule.items()
            }
            run.offer(replace(plan, schedule=schedule), source="search at the mean size, reordered")


def _finish(run: _Run) -> Plan:
    """The incumbent with its evidence, verified as a whole."""
    if run.plan is None or run.timeline is None or run.bound is None:
        why = f"; the last one: {run.rejected}" if run.rejected else ""
        raise NoPlanFoundError(f"none in {run.elapsed_s:.0f} s{why}; {what_makes_room(run.problem)}")
    plan = replace(run.plan, evidence=_evidence(run, run.plan, timeline=run.timeline, bound=run.bound))
    verdict = verify(run.problem, plan)
    if not verdict.passed:
        raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
    return plan


def _evidence(run: _Run, plan: Plan, *, timeline: Timeline, bound: Bound) -> Evidence:
    is_proved = timeline.objective_ns(run.problem.options.objective) <= bound.value_ns
    ended = "rounds" if run.limits.max_rounds is not None else "time"
    return bounded_evidence(
        run,
        plan,
        timeline=timeline,
        bound=bound,
        proved_by="certificate" if is_proved else None,
        stopped_by="proof" if is_proved else "gap" if run.is_closed else "user" if run.should_stop() else ended,
    )
