"""`make_plan`: the steps of a planning run, one after the other."""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from planner.baselines.registry import make_baselines, play_baseline
from planner.certificate import make_bound, prove_infeasible
from planner.device_groups import has_listed_groups
from planner.errors import InfeasibleProblemError, PipeplanError
from planner.plan import Plan
from planner.planning.class_layouts import class_layouts
from planner.planning.conversions import plan_of
from planner.planning.evidence import finish
from planner.planning.looped_layouts import LoopedSearch
from planner.planning.search_loop import SearchLoop
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.progress import Limits, Progress
from planner.verify import verify
from solver_models.covering import Covering
from solver_models.large_construction import large_seeds
from solver_models.precompile import FIRST
from solver_models.search import Searcher

MIN_BOUND_S, MAX_BOUND_S = 1.0, 6.0
"""Seconds that the bound over all plans may take, roughly; a tenth of the time limit in between."""

BOUND_SHARE = 0.3
"""Part of the time left after which no further step of the bound begins."""

MIN_LAYOUTS_S, SEED_LAYOUTS = 5.0, 12
"""Seconds that must be left for layouts near the bound to be looked for; how many the joint search begins with."""

MIN_SEED_PLAYS, MAX_SEED_ACTIONS = 6, 200_000_000
"""First candidates of a large problem: how many are played at least, and how many actions that may be in all."""

SEED_SHARE, BASELINE_SHARE, FIRST_SHARE, MIN_BASELINE_S = 0.1, 0.3, 0.6, 2.0
"""Parts of the time limit by whose end the first candidates of a large problem, and the baselines, are played,
and until which they are as long as none fits; they have at least so many seconds, and at most half of the limit."""

BASELINES, START = "baselines", "the plan to start from"
"""What all baselines together, and the plan that the caller gives, are called among the improvers."""

FIRST_LAYOUTS_SHARE, LAYOUTS_SHARE = 0.3, 0.8
"""Parts of the time limit up to which layouts in a loop are looked for before the baselines, and after the bound."""


def make_plan(
    problem: Problem,
    *,
    limits: Limits | None = None,
    start: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    fit: Callable[[Plan], Plan | None] | None = None,
    is_looped: bool = False,
) -> Plan:
    """The best verified plan found within the limits, never worse than any baseline that fits, nor than `start`.

    `start` may answer a similar question: if its stages and orders pass the verifier here, the search begins with them.
    `fit` brings every plan into the words of whoever is to run it (`planner.export.targets`), or gives None where that
    is impossible: only what it gave is ever returned. `is_looped`: it runs stages in a loop in the order of 1F1B, and
    nothing else; chunks and cuts are then searched for that order. `on_progress` hears of every step; `should_stop` is
    asked several times a second and ends the search early.
    Raises InfeasibleProblemError if no plan can exist, NoPlanFoundError if none was found,
    PlanError if our own verifier rejects every plan found.
    """
    run = SearchState(
        problem,
        limits or Limits(),
        on_progress=on_progress or _ignore,
        should_stop=should_stop or _never,
        fit=fit,
        fits_stages=is_looped,
    )
    with run.watch, run.collected_rarely(), closing(run.window):
        return _follow(run, start, is_looped=is_looped)


def _follow(run: SearchState, start: Plan | None, *, is_looped: bool) -> Plan:
    prove_feasible(run)
    begin_large(run)
    if is_looped:
        run.make_ready("looped")
    layouts = LoopedSearch(run) if is_looped else None
    if layouts is not None:
        search_layouts(run, layouts, share=FIRST_LAYOUTS_SHARE)
    play_baselines(run)
    run.make_ready(*FIRST)
    if start is not None:
        play_start(run, start)
    bound(run)
    if layouts is not None:
        search_layouts(run, layouts, share=LAYOUTS_SHARE)
    search(run)
    return finish(run)


def _ignore(progress: Progress) -> None:
    del progress


def _never() -> bool:
    return False


def prove_feasible(run: SearchState) -> None:
    """Raise InfeasibleProblemError if a limit alone rules out every plan."""
    reason = prove_infeasible(run.problem, run.costs)
    if reason is not None:
        raise InfeasibleProblemError(reason)


def begin_large(run: SearchState) -> None:
    """A first plan of a large problem, found among many cuts and mappings before anything slow begins."""
    if not run.is_large:
        return
    run.make_ready(*FIRST, "large")
    with run.turn_of("large seeds"):
        _begin_large(run)


def _begin_large(run: SearchState) -> None:
    searcher = Searcher(run.instance)
    is_timed = run.limits.max_rounds is None
    until = time.monotonic() + (SEED_SHARE * run.limits.time_limit_s if is_timed else math.inf)
    most = max(MIN_SEED_PLAYS, MAX_SEED_ACTIONS // run.num_actions)
    run.seeds = list(large_seeds(searcher, most_plays=most, until=until))
    if run.seeds and run.seeds[-1].is_feasible:
        run.offer(plan_of(run.problem, searcher, candidate=run.seeds[-1]), None, source="large seeds")
        run.report("search")


def play_baselines(run: SearchState) -> None:
    """Every baseline is played; those that fit become incumbents in turn."""
    with run.turn_of(BASELINES):
        _play_baselines(run)


def _play_baselines(run: SearchState) -> None:
    for baseline in make_baselines(run.problem, run.costs, has_time=lambda: has_time_for_baseline(run)):
        run.report_if_due("baselines")
        row, timeline = play_baseline(run.problem, baseline, costs=run.costs)
        run.baselines.append(row)
        if baseline.plan is None or timeline is None:
            continue
        if has_listed_groups(run.problem, baseline.plan.stages):
            run.layouts.append(baseline.plan.stages)
        if row.fits_memory and any(stage.is_split for stage in baseline.plan.stages):
            run.offer(baseline.plan, timeline, source=row.name, improver=BASELINES)
            run.report("baselines")
        elif row.fits_memory:
            run.played.append(baseline.plan)
            run.offer(baseline.plan, timeline, source=row.name, improver=BASELINES)
            run.report("baselines")


def has_time_for_baseline(run: SearchState) -> bool:
    """Whether the baselines may go on: they get a part of the time limit, or all where rounds are counted."""
    limit_s = run.limits.time_limit_s
    if run.should_stop():
        return run.elapsed_s < min(MIN_BASELINE_S, limit_s)
    if run.limits.max_rounds is not None:
        return run.elapsed_s < limit_s
    share = (FIRST_SHARE if run.plan is None else BASELINE_SHARE) + (FIRST_LAYOUTS_SHARE if run.fits_stages else 0)
    until = max(share * limit_s, min(MIN_BASELINE_S, limit_s / 2))
    return run.elapsed_s + (2 * run.offer_s if run.is_large else 0.0) < until


def play_start(run: SearchState, start: Plan) -> None:
    """The plan to start from becomes the incumbent if it is one, and the search takes its stages and orders in."""
    plan = replace(start, problem=run.problem.reference(), evidence=None)
    if not verify(run.problem, plan).passed:
        return
    with run.turn_of(START):
        run.offer(plan, None, source=START)
    run.report("start")
    if not any(stage.is_split for stage in plan.stages) and has_listed_groups(run.problem, plan.stages):
        run.start = plan
        run.layouts.append(plan.stages)


def bound(run: SearchState) -> None:
    """The certified bound over every plan that the options allow, or what of it is quick if nobody waits for more."""
    if run.should_stop():
        run.lower_bound = make_bound(run.problem, run.costs, time_limit_s=0.0)
    else:
        seconds = min(MAX_BOUND_S, max(MIN_BOUND_S, run.limits.time_limit_s / 10))
        run.lower_bound = make_bound(
            run.problem,
            run.costs,
            time_limit_s=seconds,
            make_covering=Covering,
            has_time=run.time_until(BOUND_SHARE),
            reached=run.incumbent_ns,
        )
        add_class_layouts(run)
    run.report("bound")


def add_class_layouts(run: SearchState) -> None:
    """Stages that a plan close to the bound could have, for the search to begin with."""
    has_time = run.limits.max_rounds is not None or run.seconds_left > MIN_LAYOUTS_S
    if run.lower_bound is not None and has_time and not run.is_large:
        value_ns = run.lower_bound.value_ns
        run.near_bound = class_layouts(run.problem, run.costs, value_ns=value_ns, seed=run.limits.seed)
        run.layouts += run.near_bound[:SEED_LAYOUTS]


def search_layouts(run: SearchState, layouts: LoopedSearch, *, share: float) -> None:
    """The best numbers of chunks and cuts for programs whose order is fixed, up to a part of the time limit."""
    with run.turn_of("looped layouts"):
        for plan in layouts.plans(share=share):
            run.propose(plan, source="looped layouts")


def search(run: SearchState) -> None:
    """Solvers propose, the verifier disposes, until a limit is reached."""
    if run.is_over():
        return
    run.begin_search()
    try:
        with closing(SearchLoop(run).steps()) as steps:
            for _ in steps:
                run.report_if_due("search")
                if run.is_over():
                    break
            if run.stopped_by == "time":
                run.window.drain()
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
