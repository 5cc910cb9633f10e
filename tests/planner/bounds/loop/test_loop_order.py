"""Tests of planner/bounds/loop/loop_order.py."""

import numpy
import pytest

from planner.bounds.loop.loop_order import LoopOrder
from planner.export.looped_pipelines import looped_orders
from planner.plan import Stage
from planner.problem import Problem
from tests.planner.evidence.test_certificate import make_chain


def chain_of(stages: int, *, ranks: int, count: int) -> tuple[Problem, tuple[Stage, ...]]:
    """A layer per stage, and these stages in a loop."""
    problem = make_chain([(1, 1, 1)] * stages, num_devices=ranks, num_microbatches=count)
    devices = [device.name for device in problem.cluster.devices]
    names = problem.profile.topological_order
    return problem, tuple(
        Stage(layers=(name,), replicas=((devices[number % ranks],),)) for number, name in enumerate(names)
    )


@pytest.mark.parametrize(
    ("ranks", "chunks", "count"), [(1, 1, 2), (3, 1, 5), (4, 1, 2), (2, 3, 4), (3, 2, 6), (4, 4, 4)]
)
def test_the_order_is_that_of_the_plans(ranks: int, chunks: int, count: int):
    """Tests that ranks run what plans in a loop have, and every action comes after those that it waits for."""
    problem, stages = chain_of(ranks * chunks, ranks=ranks, count=count)
    order = LoopOrder(ranks=ranks, chunks=chunks, count=count)
    wanted = [
        [(action.kind == "F", action.stage, action.microbatch) for action in actions]
        for actions in looped_orders(problem, stages, num_ranks=ranks)
    ]
    found = [[(not way, stage, m) for at, way, stage, m in order.steps if at == rank] for rank in range(ranks)]
    assert found == wanted
    places = {step[1:]: place for place, step in enumerate(order.steps)}
    for (way, stage, microbatch), place in places.items():
        assert place >= places.get((way, stage - 1 + 2 * way, microbatch), 0)
        assert place >= places[0, stage, microbatch]


@pytest.mark.parametrize(("ranks", "chunks", "count"), [(1, 1, 2), (3, 1, 5), (2, 3, 4), (4, 4, 8)])
def test_all_cases_are_played_at_once(ranks: int, chunks: int, count: int):
    """Tests that actions begin when their rank is free and what they take is there, in every case."""
    order, rng = LoopOrder(ranks=ranks, chunks=chunks, count=count), numpy.random.default_rng(ranks)
    times, hops, ends = rng.integers(0, 9, (2, ranks * chunks, 1_100)), (2, 5), list[int]()
    for case in range(3):
        free, done = [0] * ranks, dict[tuple[int, int, int], int]()
        for rank, way, stage, microbatch in order.steps:
            ready = done.get((way, stage - 1 + 2 * way, microbatch), -hops[way]) + hops[way]
            free[rank] = done[way, stage, microbatch] = max(free[rank], ready) + int(times[way, stage, case])
        ends.append(max(free))
    assert order.play(times[:, :, :3], hops=hops).tolist() == order.play(times, hops=hops)[:3].tolist() == ends


@pytest.mark.parametrize("scale", [1, 2**20, 2**31, 2**40, 2**56])
def test_large_times_are_played_exactly(scale: int):
    """Tests that a play of times beyond 32 bits is that of small ones, so many times as long; none is cut off."""
    random = numpy.random.default_rng(scale)
    order = LoopOrder(ranks=3, chunks=2, count=3)
    times, hops = random.integers(0, 5, (2, 6, 40)), (1, 2)
    small = order.play(times, hops=hops)
    assert small.max() < 127
    assert (order.play(times * scale, hops=(scale, 2 * scale)) == small * scale).all()
