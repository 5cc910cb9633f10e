"""Puts every W into given orders of F and I: where a device would wait, where memory asks for it, or at the end.

This is the heuristic of the zero-bubble paper (Qi et al., 2024, arXiv 2401.10241, section 3.1).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.baselines.applicability import require_time
from planner.baselines.encoded_orders import encode_orders, make_net, name_actions
from planner.baselines.pipeline import DeviceOrders, Pipeline
from solver_models.device_rows import column
from solver_models.simulation.weight_filling import LENGTH, NEXT, UNLIMITED, FilledOrders, FillHabit, fill_orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """When a W is run although an F or an I could come next."""

    quarters: int
    """It is run where the wait for the next F or I is at least this many quarters of it."""
    evens_out: bool = False
    """It is also run in shorter waits if the device would otherwise become the one that has waited longest."""
    at_once: bool = False
    """It is also run directly after its I as long as the device has forwards to run."""


AS_GIVEN = Habit(quarters=1 << 40)
"""No W but those that the orders hold, and those that memory needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filled:
    """Complete orders, and how long they take when every transfer has its links to itself."""

    device_orders: DeviceOrders
    """F, I and W on every position."""
    makespan_ns: int
    """End of the last action."""
    span_ns: int
    """Longest time from first to last action of a position."""


def best_filled(
    pipeline: Pipeline, trials: Iterable[tuple[DeviceOrders, Habit]], *, limits: Sequence[int]
) -> DeviceOrders:
    """The best outcome of several trials: orders of F and I, each with a habit; `limits` are bytes per position.

    A W in such an order means: the oldest W that is due, if there is one.
    """
    filler, best = _Filler(pipeline, limits=limits), None
    for orders, habit in trials:
        require_time(pipeline.has_time)
        most = UNLIMITED if best is None or pipeline.minimises_span else best.makespan
        found = filler.fill(orders, habit, most=most)
        if best is None or pipeline.rank_of(found.makespan, found.span) < pipeline.rank_of(best.makespan, best.span):
            best = found
    assert best is not None, "there are no trials"
    return filler.name(best)


def fill(pipeline: Pipeline, orders: DeviceOrders, *, habit: Habit, limits: Sequence[int]) -> _Filled:
    """Play `orders` (F and I only, free of deadlock) and put the W in on the way.

    A W is run before an F that would not fit `limits` otherwise; if there is no W left to run, the F does not wait.
    """
    filler = _Filler(pipeline, limits=limits)
    filled = filler.fill(orders, habit)
    return _Filled(device_orders=filler.name(filled), makespan_ns=filled.makespan, span_ns=filled.span)


class _Filler:
    """One pipeline, and the orders that were filled last: several habits are tried with each."""

    def __init__(self, pipeline: Pipeline, *, limits: Sequence[int]) -> None:
        self.net, self.count = make_net(pipeline), pipeline.num_microbatches
        self.limits = column(limits)
        self.orders: DeviceOrders = []
        self.encoded = encode_orders(self.orders, num_microbatches=self.count)

    def fill(self, orders: DeviceOrders, habit: Habit, *, most: int = UNLIMITED) -> FilledOrders:
        if orders is not self.orders:
            self.orders, self.encoded = orders, encode_orders(orders, num_microbatches=self.count)
        kept = FillHabit(habit.quarters, habit.evens_out, habit.at_once)
        filled = fill_orders(self.net, *self.encoded, kept, self.limits, most)
        is_whole = filled.positions[:, NEXT].sum() == len(self.encoded[0])
        assert is_whole or filled.makespan > most, "the orders wait for each other"
        return filled

    def name(self, filled: FilledOrders) -> DeviceOrders:
        stages, kinds = filled.device_orders // (4 * self.count), filled.device_orders % 4
        return name_actions(4 * stages + kinds, filled.positions[:, LENGTH])
