"""Time windows and orders of many cases at once: tests of planner/bounds/cases/order_windows.py."""

from random import Random

import numpy
import pytest

from benchmarks.orders import make_problem, uneven_times
from planner.bounds.cases import order_windows
from planner.bounds.cases.backward_passes import settle_passes
from planner.bounds.cases.given_orders import GivenOrders
from planner.bounds.cases.order_windows import CHANGING, Cases, OrderNodes, begin, narrow
from planner.bounds.cases.tree_codes import choose, decide
from planner.evidence.certificate import schedule_bound
from planner.layout.costs import CostModel
from tests.long_runs import shortened


def root(rng: Random) -> tuple[OrderNodes, Cases]:
    """All orders of some uneven stages in little memory, a little above or below a bound."""
    num_stages, count = rng.choice([(2, 3), (2, 9), (3, 5), (4, 7)])
    times = uneven_times(num_stages, seed=rng.randint(0, 99))
    problem = make_problem(
        times, num_microbatches=count, memory=rng.choice([0.5, 1, 2]), transfer_us=rng.choice([0, 90])
    )
    costs = CostModel(problem)
    orders = GivenOrders(costs)
    deadline = schedule_bound(problem, orders.stages, costs=costs) * rng.choice([99, 100, 101, 104, 120]) // 100
    return begin(orders.cases, numpy.arange(1), deadline=deadline), orders.cases


def by_all_rules(orders: OrderNodes, cases: Cases) -> OrderNodes:
    """What is left where every pass applies every rule."""
    never = numpy.zeros(len(orders.case), dtype=bool)
    alive, _ = order_windows._apply(orders, cases, settle=settle_passes, passes=order_windows.MAX_PASSES, waits=never)
    return orders.take(numpy.flatnonzero(alive))


def copy(orders: OrderNodes) -> OrderNodes:
    return orders.take(numpy.arange(len(orders.case)))


@pytest.mark.parametrize("passes", [order_windows.MAX_PASSES, 3])
def test_edges_that_wait_tell_the_same(passes: int, monkeypatch: pytest.MonkeyPatch):
    """Tests that nodes, windows and orders are the same as if every pass applied every rule, few passes or many."""
    monkeypatch.setattr(order_windows, "MAX_PASSES", passes)
    num_closed = num_left = 0
    for seed in range(shortened(15, whole=3_000)):
        orders, cases = root(Random(f"windows {seed}"))
        for _ in range(6):
            found = narrow(copy(orders), cases, settle=settle_passes, passes=passes)
            known = by_all_rules(orders, cases)
            for name in ("node", *CHANGING):
                assert numpy.array_equal(getattr(found, name), getattr(known, name)), f"seed {seed}: {name}"
            num_closed, num_left = num_closed + len(orders.case) - len(known.case), num_left + len(known.case)
            if not len(known.case) or (codes := choose(known)).min() < 0:
                break
            nodes = numpy.arange(len(codes))
            orders = decide(known, codes, nodes=(2 * nodes, 2 * nodes + 1), cases=cases)
            orders = orders.take(numpy.arange(min(4, len(orders.case))))
    assert min(num_closed, num_left) > 0


def test_sums_in_32_bits_are_those_in_64():
    """Tests that times beyond 32 bits shift windows as short ones do."""
    rng = numpy.random.default_rng(1)
    start, time = rng.integers(0, 1_000, (2, 3, 9)), rng.integers(0, 50, (2, 3, 9))
    before, factor = rng.random((2, 3, 9, 9)) < 0.4, 1 << 40
    for rule in (order_windows._wait, order_windows._precede):
        short, long = start.copy(), start * factor
        rule(short, before, time=time)
        rule(long, before, time=time * factor)
        assert (short != start).any()
        assert (long == short * factor).all()
    for time in (5, 1 << 29):  # sums at the edge of 32 bits, and one above it
        for first in ((1 << 31) - 1 - 2 * time, (1 << 31) - time):
            start = numpy.full((1, 1, 2), first)
            order_windows._wait(
                start, numpy.array([[[[False, True], [False, False]]]]), time=numpy.full_like(start, time)
            )
            assert start.ravel().tolist() == [first, first + time]
