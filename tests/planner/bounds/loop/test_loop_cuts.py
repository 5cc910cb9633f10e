"""Cuts of a chain into the stages of a loop: against every cut, one after the other."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import numpy

from planner.bounds.loop.loop_cases import ActionsLeft, is_refuted
from planner.bounds.loop.loop_cuts import LoopCuts, WindowTables
from planner.bounds.loop.loop_layers import NOT_ENOUGH
from planner.bounds.loop.loop_order import order_of
from tests.long_runs import shortened

MUCH = 10**8
"""More effort than any of these problems needs."""


def any_cuts(rng: Random) -> tuple[LoopCuts, numpy.ndarray]:
    """Up to eight layers on two or three ranks, some with little room, and their times."""
    ranks = rng.randint(2, 3)
    size = rng.randint(ranks, 8)
    chunks = rng.randint(1, min(3, size // ranks))
    times = numpy.array([[rng.choice([0, 1, 7, 8, 9, 30]) for _ in range(size)] for _ in range(2)])
    extra = numpy.zeros((ranks, size + 1), dtype=numpy.int64)
    if rng.random() < 0.3:
        extra[rng.randrange(ranks), rng.randint(1, size) :] = NOT_ENOUGH
    cuts = LoopCuts(
        ranks=ranks,
        chunks=chunks,
        count=ranks * rng.randint(1, 3),
        tables=WindowTables(times),
        alone=WindowTables(times.sum(axis=0)[None]).alone(ranks * chunks),
        total=numpy.sort(times.sum(axis=0))[::-1],
        extra=extra,
        rooms=numpy.full(ranks, 10**6),
        deadline=10**6,
        all_return=True,
        overhead=numpy.array([rng.randint(0, 2), rng.randint(0, 2)]),
        hops=(rng.randint(0, 2), rng.randint(0, 2)),
    )
    return cuts, times


def every_cut(cuts: LoopCuts) -> Iterator[tuple[int, ...]]:
    """The layers of all stages, for every cut in which no rank has more than memory for."""
    for inner in combinations(range(1, cuts.units), cuts.ranks * cuts.chunks - 1):
        numbers = tuple(b - a for a, b in pairwise((0, *inner, cuts.units)))
        held = [sum(numbers[rank :: cuts.ranks]) for rank in range(cuts.ranks)]
        if all(cuts.extra[rank, number] < NOT_ENOUGH for rank, number in enumerate(held)):
            yield numbers


def time_of(cuts: LoopCuts, times: numpy.ndarray, numbers: tuple[int, ...]) -> int:
    begins = numpy.cumsum([0, *numbers[:-1]])
    stages = numpy.add.reduceat(times, begins, axis=1) + cuts.overhead[:, None]
    order = order_of(ranks=cuts.ranks, chunks=cuts.chunks, count=cuts.count)
    return int(order.play(stages[:, :, None], hops=cuts.hops)[0])


def within(cuts: LoopCuts, deadline: int) -> LoopCuts:
    """The question for a deadline, with the room that it leaves to ranks."""
    room = deadline // cuts.count - cuts.chunks * int(cuts.overhead.sum())
    return replace(cuts, deadline=deadline, rooms=numpy.full(cuts.ranks, room))


def is_out(cuts: LoopCuts, deadline: int, *, effort: int = MUCH) -> bool:
    return is_refuted(within(cuts, deadline), deadline, effort=ActionsLeft(effort))


def test_cuts_are_exact():
    """Tests that with enough effort a time is refuted exactly if every cut that fits takes longer."""
    rng, num_full = Random(5), 0
    for _ in range(shortened(150, whole=6000)):
        cuts, times = any_cuts(rng)
        found = [time_of(cuts, times, numbers) for numbers in every_cut(cuts)]
        if not found:
            assert is_out(cuts, 10**6)
            num_full += 1
            continue
        assert not is_out(cuts, min(found))
        assert is_out(cuts, min(found) - 1)
    assert num_full


def test_windows_hold_the_least():
    """Tests that what layers take within a window is the least of those that begin there."""
    rng = Random(2)
    for _ in range(20):
        times = numpy.array([[rng.randint(0, 50) for _ in range(rng.choice([1, 6, 17]))]])
        tables, size = WindowTables(times), times.shape[1]
        for _ in range(50):
            number = rng.randint(0, size)
            first = rng.randint(0, size - number)
            last = rng.randint(first, size - number)
            wanted = min(times[0, begin : begin + number].sum() for begin in range(first, last + 1))
            found = tables.least(numpy.array([number]), first=numpy.array([first]), last=numpy.array([last]))
            assert found[0, 0] == wanted


def test_stages_of_a_case_take_no_more_than_they_do():
    """Tests that the times of a case are no more than those of any cut within it, and exact for a single one."""
    rng = Random(3)
    for _ in range(shortened(60, whole=2000)):
        cuts, times = any_cuts(rng)
        numbers = rng.choice(list(every_cut(replace(cuts, extra=cuts.extra * 0))))
        begins = numpy.cumsum([0, *numbers[:-1]])
        exact = numpy.add.reduceat(times, begins, axis=1) + cuts.overhead[:, None]
        own = numpy.array([numbers])
        assert (cuts.times(own, own)[:, :, 0] == exact).all()
        spread = numpy.array([[rng.randint(0, 2) for _ in numbers] for _ in range(2)])
        wide = cuts.times(numpy.maximum(own - spread[:1], 1), own + spread[1:])[:, :, 0]
        assert (wide <= exact).all()
