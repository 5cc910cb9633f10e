"""Widths in cores for the operations of one host, decided together with their times."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.concurrency.core_model import CoreInstance, solve_cores
from benchmarks.concurrency.strategies import (
    Operation,
    Placed,
    best_widths,
    find_mistakes,
    makespan_ns,
    run_one_by_one,
    run_side_by_side,
    widths_by_kind,
)
from planner.errors import PlanError

MAX_TICKS = 100_000
"""About so many ticks the incumbent's makespan is cut into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlan:
    """A schedule on the cores of a host."""

    placed: tuple[Placed, ...]
    makespan_ns: int
    solver_bound_ns: int
    """What the solver claims that no schedule falls below."""
    source: str
    """`CP-SAT`, or the strategy that it could not improve on."""


def plan_cores(operations: Sequence[Operation], *, cores: int, time_limit_s: float = 10.0, seed: int = 0) -> CorePlan:
    """The best schedule found; never worse than any of the strategies of `benchmarks.concurrency.strategies`.

    Raises PlanError if our own check rejects it.
    """
    source, best = min(_strategies(operations, cores).items(), key=lambda pair: makespan_ns(pair[1]))
    tick = max(1, makespan_ns(best) // MAX_TICKS)
    ticks = tuple(
        {width: -(-time // tick) for width, time in each.times_ns.items() if width <= cores} for each in operations
    )
    instance = CoreInstance(ticks=ticks, after=tuple(each.after for each in operations), cores=cores)
    starts, widths = _start_in_ticks(best, ticks)
    horizon = max(start + ticks[number][widths[number]] for number, start in enumerate(starts))
    known = starts, widths
    result = solve_cores(instance, horizon=horizon, known=known, time_limit_s=time_limit_s, seed=seed)
    if result.start is not None and result.width is not None:
        found = _replay(operations, result.start, widths=result.width, cores=cores)
        if makespan_ns(found) < makespan_ns(best):
            source, best = "CP-SAT", found
    if mistakes := find_mistakes(operations, best, cores=cores):
        raise PlanError(f"the schedule on {cores} cores is wrong: {mistakes[0]}")
    bound = max(0, (result.bound - len(operations)) * tick)  # every operation was rounded up by less than a tick
    return CorePlan(placed=tuple(best), makespan_ns=makespan_ns(best), solver_bound_ns=bound, source=source)


def _strategies(operations: Sequence[Operation], cores: int) -> dict[str, list[Placed]]:
    best, by_kind = best_widths(operations), widths_by_kind(operations)
    return {
        "strategy 1": run_one_by_one(operations, best),
        "strategies 1 and 2": run_one_by_one(operations, by_kind),
        "strategies 1 and 3": run_side_by_side(operations, best, cores=cores),
        "strategies 2 and 3": run_side_by_side(operations, by_kind, cores=cores),
    } | {
        f"at most {most} cores each": run_side_by_side(
            operations,
            [_at_most(each, min(most, width)) for each, width in zip(operations, best, strict=True)],
            cores=cores,
            may_outlast=True,
        )
        for most in sorted({width for each in operations for width in each.times_ns if width <= cores})
    }


def _at_most(operation: Operation, most: int) -> int:
    return max(width for width in operation.times_ns if width <= most)


def _start_in_ticks(placed: Sequence[Placed], ticks: Sequence[dict[int, int]]) -> tuple[list[int], list[int]]:
    """A schedule of the same order and widths, one operation after the other in time where it had to be."""
    starts, widths = [0] * len(ticks), [1] * len(ticks)
    moments = sorted({each.start_ns for each in placed} | {each.end_ns for each in placed})
    at = {moments[0]: 0}
    for before, moment in pairwise(moments):
        due = [at[each.start_ns] + ticks[each.operation][each.width] for each in placed if each.end_ns == moment]
        at[moment] = max([at[before], *due])
    for each in placed:
        starts[each.operation], widths[each.operation] = at[each.start_ns], each.width
    return starts, widths


def _replay(
    operations: Sequence[Operation], starts: Sequence[int], *, widths: Sequence[int], cores: int
) -> list[Placed]:
    """In the order of the given starts, every operation as soon as what it waits for has ended and cores are idle."""
    placed: list[Placed] = []
    end: dict[int, int] = {}
    for number in sorted(range(len(operations)), key=lambda each: (starts[each], each)):
        width = widths[number]
        ready = max((end[before] for before in operations[number].after), default=0)
        now = _first_room(placed, ready, wanted=width, cores=cores)
        end[number] = now + operations[number].times_ns[width]
        placed.append(Placed(operation=number, start_ns=now, end_ns=end[number], width=width))
    return placed


def _first_room(placed: Sequence[Placed], ready: int, *, wanted: int, cores: int) -> int:
    """The first instant from `ready` on, no earlier than the last start, at which so many cores are idle."""
    least = max(ready, max((each.start_ns for each in placed), default=0))
    for now in sorted({least, *(each.end_ns for each in placed if each.end_ns > least)}):
        if sum(each.width for each in placed if each.start_ns <= now < each.end_ns) + wanted <= cores:
            return now
    raise PlanError(f"no {wanted} of {cores} cores are ever idle")
