"""The steps of a planning run on one problem, one after the other; who takes them: `planner.planning.runs.driver`."""

import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NotRequired, TypedDict, Unpack

from planner import decisions
from planner.baselines.registry import make_baselines, play_baseline
from planner.bounds.bound_params import BoundParams
from planner.errors import PipeplanError
from planner.evidence.certificate import make_bound, refute
from planner.export.looped_pipelines import as_looped
from planner.export.targets import Target
from planner.layout.costs import CostModel
from planner.layout.device_groups import has_listed_groups
from planner.plan import BaselineResult, Plan
from planner.planning.complete.complete_search import is_complete, search_completely
from planner.planning.fused_backwards import fuse_backwards
from planner.planning.improvers.bound_improver import packs_later, raises_bound
from planner.planning.improvers.tree_proposals import TreeProposals
from planner.planning.planning_params import SearchParams
from planner.planning.search_loop import SearchLoop
from planner.planning.search_state import NO_PLAN_SHARE, SearchState
from planner.planning.starts.class_pipelines import begin_with_classes
from planner.planning.starts.conversions import candidate_of
from planner.planning.starts.first_starts import begin_large, propose_best_seed
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.problem import Problem
from planner.progress import Limits, Progress
from planner.replanning.transition import Transition
from planner.verify import verify
from solver_models.covering import Covering
from solver_models.local_search.portable_tasks import PortableTask, Workers
from solver_models.precompile import BASELINE_KERNELS, JOINT

_FIRST_LAYOUTS_SHARE = 0.3
"""Part of the time limit up to which layouts in a loop are looked for before the baselines."""
_LAYOUTS_SHARE = 0.8
"""Part of the time limit up to which layouts in a loop are looked for after the bound."""
_REFUTED_EFFORT = 400_000
"""Units of work that a refutation may take, of some 20 microseconds each; 0: none is tried."""
_BASELINE_SHARE = 0.3
"""Part of the time limit by whose end the baselines are played."""
_MIN_S = 1.0
"""Seconds that the bound over all plans may take, roughly and at least."""
_LIMIT_PARTS = 10
"""The bound over all plans gets one part in so many of the time limit, within its least and most seconds."""
_BOUND_SHARE = 0.3
"""Part of the time left after which no further step of the bound begins."""
_FEW_LAYERS, _JOINT_SHARE = 15, 0.5
"""Layers up to which a solver begins by itself; and part of the time of the joint search before, where there are more.
"""
_FEW_CELLS = 60
"""Layers x devices x microbatches up to which a solver without CP-SAT's propagation begins by itself."""

BASELINES, START, BOUND, REFUTATION = "baselines", "the plan to start from", "bound", "refutation"
"""What all baselines together, the caller's plan, the first bound and the last proof are called among improvers."""


class PlanningOptions(TypedDict, total=False):
    """What `planner.planning.make_plan`, which says what they mean, takes beside the problem."""

    limits: Limits | None
    start: Plan | None
    on_progress: Callable[[Progress], None] | None
    should_stop: Callable[[], bool] | None
    target: Target | None
    params: SearchParams
    transition: Transition | None
    workers: Workers | None


class RunSetup(TypedDict):
    """What every planning run is begun with, be it the only one or one of several that share the time."""

    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]
    target: Target | None
    params: SearchParams
    workers: NotRequired[Workers | None]


def begin_run(problem: Problem, limits: Limits, **how: Unpack[RunSetup]) -> SearchState:
    """A planning run whose clock begins now."""
    target, is_looped = how["target"], problem.options.order == "looped"
    run = SearchState(
        problem,
        limits,
        on_progress=how["on_progress"],
        should_stop=how["should_stop"],
        fit=partial(_fit, problem, target=target) if is_looped or target is not None else None,
        fits_stages=is_looped or (target is not None and target.is_looped),
        params=how["params"],
    )
    if how.get("workers") is not None:
        run.employ(how["workers"])
    return run


def _fit(problem: Problem, plan: Plan, *, target: Target | None) -> Plan:
    """The plan as the options and the target want it; raises ValueError with the reason why there is none."""
    if problem.options.order == "looped" and (target is None or not target.is_looped):
        plan = as_looped(problem, plan, has_widths=True)
    return plan if target is None else target.fit(problem, plan)


def make_first_plans(run: SearchState, start: Plan | None) -> LoopedSearch | None:
    """Everything before the bound; returns the search of layouts for programs that run stages in a loop."""
    begin_large(run)
    begin_with_classes(run)
    propose_best_seed(run)
    if run.fits_stages:
        run.make_ready("looped")
    layouts = LoopedSearch(run) if run.fits_stages else None
    if layouts is not None:
        _search_layouts(run, layouts, share=_FIRST_LAYOUTS_SHARE)
    is_counted = run.limits.max_rounds is not None
    if run.workers is not None and run.is_large and run.fit is None and not run.witnesses and not is_counted:
        _play_baselines_beside(run)
    else:
        run.make_ready(*BASELINE_KERNELS)
        play_baselines(run)
    run.make_ready(*JOINT)
    if start is not None:
        _play_start(run, start)
    return layouts


def bound_and_lay_out(run: SearchState, layouts: LoopedSearch | None) -> None:
    """The bound, and with it the rest of the search of layouts."""
    bound(run)
    if layouts is not None:
        _search_layouts(run, layouts, share=_LAYOUTS_SHARE)


def ignore(progress: Progress) -> None:
    """Nobody hears of it."""
    del progress


def never() -> bool:
    """Nobody stops it."""
    return False


def play_baselines(run: SearchState) -> None:
    """Every baseline is played; those that fit become incumbents in turn."""
    with run.step_of(BASELINES):
        _play_baselines(run)


def _play_baselines(run: SearchState) -> None:
    for baseline in make_baselines(run.problem, run.costs, has_time=lambda: _has_time_for_baseline(run)):
        run.report_if_due("baselines")
        row, timeline = play_baseline(run.problem, baseline, costs=run.costs)
        run.baselines.append(row)
        if baseline.plan is None or timeline is None:
            if baseline.plan is not None:
                run.dropped.add(row.note)
            continue
        if has_listed_groups(run.problem, baseline.plan.stages):
            run.layouts.append(baseline.plan.stages)
        if row.fits_memory:
            run.show(baseline.plan, timeline, source=row.name)
        if row.fits_memory and any(stage.is_split for stage in baseline.plan.stages):
            run.offer(baseline.plan, timeline, source=row.name, improver=BASELINES)
            run.report("baselines")
        elif row.fits_memory:
            run.played.append(baseline.plan)
            run.offer(baseline.plan, timeline, source=row.name, improver=BASELINES)
            run.report("baselines")


def _play_baselines_beside(run: SearchState) -> None:
    """A worker plays the baselines of a large problem while the search has begun; what it finds is taken in later."""

    def take(found: tuple[list[BaselineResult], Plan | None, str]) -> Plan | None:
        rows, plan, source = found
        run.baselines += rows
        return plan if plan is not None and run.offer(plan, None, source=source, improver=BASELINES) else None

    limits = replace(run.limits, threads=1)
    run.start_beside(PortableTask(_Baselines(problem=run.problem, limits=limits, params=run.params), "play"), take)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Baselines:
    """Plays the baselines in a part of the time limit, wherever that is."""

    problem: Problem
    limits: Limits
    params: SearchParams

    def play(self) -> tuple[list[BaselineResult], Plan | None, str]:
        """Their rows, and the best plan with its name."""
        run = begin_run(
            self.problem, self.limits, on_progress=ignore, should_stop=never, target=None, params=self.params
        )
        run.make_ready(*BASELINE_KERNELS)
        with run.watch, closing(run.window):
            play_baselines(run)
        return run.baselines, run.plan, run.source


def _has_time_for_baseline(run: SearchState) -> bool:
    """Whether the baselines may continue: they get a part of the time limit, or all where rounds are counted."""
    limit_s, min_s = run.limits.time_limit_s, run.params.first_plans.min_baseline_s
    if run.should_stop():
        return run.elapsed_s < min(min_s, limit_s)
    if run.limits.max_rounds is not None:
        return run.elapsed_s < limit_s
    share = NO_PLAN_SHARE if run.plan is None else _BASELINE_SHARE
    share += _FIRST_LAYOUTS_SHARE if run.fits_stages else 0
    until = max(share * limit_s, min(min_s, limit_s / 2))
    return run.elapsed_s + (2 * run.offer_s if run.is_large else 0.0) < until


def _play_start(run: SearchState, start: Plan) -> None:
    """The plan to start from becomes the incumbent if it is one, and the search takes its stages and orders in."""
    plan = replace(start, problem=run.problem.reference(), evidence=None)
    if not verify(run.problem, plan).passed:
        return
    with run.step_of(START):
        run.offer(plan, None, source=START)
    run.report("start")
    if _is_searchable(run, plan):
        run.start = plan
        run.layouts.append(plan.stages)


def _is_searchable(run: SearchState, plan: Plan) -> bool:
    """Whether the search can continue from the plan's stages."""
    is_plain = not any(stage.is_split or stage.samples for stage in plan.stages)
    return is_plain and has_listed_groups(run.problem, plan.stages)


def take_in_beside(run: SearchState, loop: SearchLoop | None, *, waits: bool = False) -> None:
    """The search continues from better plans that workers found beside it, too."""
    for plan in run.take_beside(waits=waits):
        if loop is not None and _is_searchable(run, plan):
            loop.search.take([candidate_of(run.problem, loop.search.searcher, plan=plan)])
        run.report("search")


def bound(run: SearchState) -> None:
    """The certified bound over every plan that the options allow, or what of it is quick if nobody waits for more."""
    params = run.params.bound
    if run.should_stop():
        run.lower_bound = make_bound(run.problem, run.costs, time_limit_s=0.0, params=params)
    else:
        limit_s = run.num_runs * run.limits.time_limit_s
        seconds = min(params.max_s, max(_MIN_S, limit_s / _LIMIT_PARTS)) / run.num_runs
        if run.limits.max_rounds is not None:
            part = run.params.pace.counted_part
            params = replace(
                params,
                packing_per_s=max(1, params.packing_per_s // part),
                loop_actions_per_s=params.loop_actions_per_s // part,
            )
        elif raises_bound(run):
            params = replace(params, packing_per_s=max(1, int(params.packing_per_s * _MIN_S / seconds)))
        run.pending_effort = int(seconds * params.packing_per_s) if packs_later(run) else 0
        with run.step_of(BOUND):
            run.lower_bound = make_bound(
                run.problem,
                run.costs,
                time_limit_s=seconds,
                make_covering=None if run.pending_effort else Covering,
                has_time=run.time_until(_BOUND_SHARE),
                reached=run.threshold_ns,
                params=params,
            )
        _add_layouts(run, seconds=seconds, params=params)
    run.report("bound")


def _add_layouts(run: SearchState, *, seconds: float, params: BoundParams) -> None:
    """Stages that a plan close to the bound could have; where few bounds hold, to that of equal shares, whole weights.

    The search begins with these, of which more is known: that bound is no bound here, but shows where to begin.
    """
    bound = run.lower_bound
    refined = [each for each in decisions.asked(run.problem.options) if each.decision.is_refined]
    if refined:
        plain: dict[str, Any] = {each.option: each.closed for each in refined}
        equal = replace(run.problem, options=replace(run.problem.options, **plain))
        costs, has_time = CostModel(equal), run.time_until(_BOUND_SHARE)
        bound = make_bound(equal, costs, time_limit_s=seconds, make_covering=Covering, has_time=has_time, params=params)
    if bound is not None:
        run.layouts += filter(run.problem.is_as_given, bound.timely)


def _certify(run: SearchState, loop: SearchLoop | None) -> None:
    """Where a gap is open after the search of a small problem: a certificate that there is nothing below the incumbent.

    What the complete search closed, a reader has to believe; a refutation is derived again by the one that checks the
    plan. It looks at the clock between many cases, so a part of the time is left to it. Where there is none, what only
    a solver says is closed by the search itself, as far as that is quick.
    """
    below = run.threshold_ns
    if below is None or run.lower_bound is None or run.lower_bound.value_ns >= below or run.should_stop():
        return
    is_claimed = run.solver_bound_ns is not None and run.solver_bound_ns >= below
    if not is_claimed or loop is None:
        return
    with run.step_of(REFUTATION):
        has_time = run.time_until(0.95)
        trees = TreeProposals(run.problem, loop.search.searcher, value=below, has_time=has_time)
        found = refute(
            run.problem, run.costs, value=below, effort=_REFUTED_EFFORT, has_time=has_time, propose=trees.propose
        )
        run.lower_bound = found or run.lower_bound
    if found is not None:
        run.stopped_by = "proof"
        run.report("bound")
    elif run.searched_ns is None or run.searched_ns < below:
        with run.step_of(loop.exact.name):
            for _ in loop.exact.close_again():
                run.report_if_due("search")


def _search_layouts(run: SearchState, layouts: LoopedSearch, *, share: float) -> None:
    """The best numbers of chunks and cuts for programs whose order is fixed, up to a part of the time limit."""
    with run.step_of("looped layouts"):
        for plan in layouts.plans(share=share):
            run.propose(plan, source="looped layouts")


def _search_for_solver(run: SearchState) -> Generator[None, None, None]:
    """The complete model, from what the joint search finds in half of the time where there are many partitions."""
    problem = run.problem
    size = len(problem.profile.layers) * len(problem.cluster.devices) * problem.num_microbatches
    is_hard = len(problem.profile.layers) > _FEW_LAYERS or (run.limits.method == "ilp" and size > _FEW_CELLS)
    if is_hard and problem.options.partition is None and run.limits.max_rounds is None:
        until = run.elapsed_s + _JOINT_SHARE * run.seconds_left
        with closing(SearchLoop(run).steps()) as steps:
            for _ in steps:
                yield
                if run.elapsed_s >= until:
                    break
        run.window.drain()
    yield from search_completely(run)


def search(run: SearchState) -> Generator[None, None, None]:
    """Solvers propose, the verifier disposes, until a limit is reached; it yields wherever the run may be left."""
    if run.is_over():
        take_in_beside(run, None, waits=run.stopped_by != "proof")
        return
    run.begin_search()
    loop: SearchLoop | None = None
    try:
        loop = None if is_complete(run.limits.method) else SearchLoop(run)
        with closing(_search_for_solver(run) if loop is None else loop.steps()) as steps:
            for _ in steps:
                run.report_if_due("search")
                take_in_beside(run, loop)
                if run.is_over():
                    break
                yield
            if run.stopped_by == "time":
                run.window.drain()
        take_in_beside(run, loop, waits=run.stopped_by != "proof")
        _certify(run, loop)
        fuse_backwards(run)
        _keep_candidates(run, loop)
    except GeneratorExit:
        _keep_candidates(run, loop)
        raise
    except PipeplanError:
        raise
    except Exception as error:
        if run.plan is None:
            raise
        # a bug of ours must not cost the user a plan that is already verified
        warnings.warn(
            f"the search failed ({error!r}); the best verified plan is returned", RuntimeWarning, stacklevel=2
        )
        run.stopped_by = "internal_error"
    finally:
        run.window.close()


def _keep_candidates(run: SearchState, loop: SearchLoop | None) -> None:
    """Show what the joint search had at its end to the one that looks for more than the best plan."""
    if loop is not None:
        for witness in run.witnesses:
            witness.take(loop.search.searcher, loop.candidates)
