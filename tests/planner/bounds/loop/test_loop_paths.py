"""Paths of a loop's order: against its play, and against every cut that ends in time."""

from random import Random

import numpy

from planner.bounds.loop.loop_cases import ActionsLeft
from planner.bounds.loop.loop_order import order_of
from planner.bounds.loop.loop_paths import cross_out, paths_of
from tests.long_runs import shortened
from tests.planner.bounds.loop.test_loop_cuts import MUCH, any_cuts, every_cut, time_of, within


def test_paths_take_what_the_play_takes():
    """Tests that the longest path of times takes as long by them as the play, and no longer than it by others."""
    rng = numpy.random.default_rng(3)
    for ranks, chunks, count in [(1, 1, 3), (2, 1, 5), (5, 1, 3), (3, 2, 6), (4, 3, 8), (2, 4, 4)]:
        order, hops = order_of(ranks=ranks, chunks=chunks, count=count), (3, 5) if ranks > 1 else (0, 0)
        times, others = rng.integers(0, 90, (2, 2, order.stages, 20))
        counts, travel = order.longest_paths(times, hops=hops)
        taken = [(counts * each.reshape(counts.shape)).sum(axis=0) + travel for each in (times, others)]
        assert (taken[0] == order.play(times, hops=hops)).all()
        assert (taken[1] <= order.play(others, hops=hops)).all()
        paths = paths_of(order, mean=(20, 40), hops=hops)
        assert len(paths.travel) == len(paths.counts) <= 1 + ranks + order.stages


def test_no_cut_in_time_is_crossed_out():
    """Tests that every cut that ends in time keeps its fillings, by all looks, and that some others lose them."""
    rng, num_gone, num_refuted = Random(7), 0, 0
    for _ in range(shortened(150, whole=6000)):
        cuts, times = any_cuts(rng)
        found = {numbers: time_of(cuts, times, numbers) for numbers in every_cut(cuts)}
        if not found:
            continue
        for deadline in (min(found.values()) - 1, min(found.values()), sorted(found.values())[len(found) // 3]):
            question = within(cuts, deadline)
            before = question.fillings()
            if not all(before):
                continue
            after = cross_out(question, before, deadline=deadline, effort=ActionsLeft(MUCH))
            for numbers in (each for each, time in found.items() if time <= deadline):
                assert all(numbers[rank :: cuts.ranks] in rows for rank, rows in enumerate(after))
            num_gone += sum(map(len, before)) - sum(map(len, after))
            num_refuted += not all(after)
    assert num_gone > num_refuted > 0


def test_no_paths_are_looked_at_without_effort():
    """Tests that what is not paid for leaves all fillings, and that too large times do."""
    rng = Random(1)
    while True:
        cuts, times = any_cuts(rng)
        deadline = min((time_of(cuts, times, numbers) for numbers in every_cut(cuts)), default=1) - 1
        question = within(cuts, deadline)
        fillings = question.fillings()
        if all(fillings) and cross_out(question, fillings, deadline=deadline, effort=ActionsLeft(MUCH)) != fillings:
            break
    assert cross_out(question, fillings, deadline=deadline, effort=ActionsLeft(MUCH, for_paths=0)) == fillings
    assert cross_out(question, fillings, deadline=1 << 59, effort=ActionsLeft(MUCH)) == fillings
