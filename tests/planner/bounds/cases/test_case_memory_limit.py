"""What fits into the devices of many cases: counted as device by device, and it closes what no pair of windows does."""

from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.cases import order_windows
from planner.bounds.cases.case_memory_limit import FAR, NUM_FORWARDS, are_too_idle, most_in_cases
from planner.bounds.order.joint_memory_limit import make_held_together
from planner.bounds.order.stage_replicas import StageReplica
from planner.evidence.certificate import check_certificate, refute
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from tests.long_runs import examples, shortened
from tests.planner.bounds.order.test_joint_memory_limit import random_v
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.evidence.test_certificate import make_chain
from tests.strategies import random_chain

EFFORT = 400_000


def random_lanes(rng: Random, *, num_lanes: int) -> list[StageReplica]:
    """Lanes of one device, of unlike sizes."""
    return [
        StageReplica(
            devices=("d",), forward=rng.randint(1, 9), returning=rng.randint(0, 9), rest=rng.randint(0, 9),
            held=rng.randint(0, 9), kept=rng.randint(0, 9), budgets=(0,), synchronisation=0,
        )
        for _ in range(num_lanes)
    ]  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_cases_are_counted_as_single_devices(rng):
    """Tests that of one or two lanes the same fits, and that the same windows are too short."""
    count, num_lanes, places = rng.randint(1, 5), rng.randint(1, 2), rng.randint(2, 3)
    lanes, budget = random_lanes(rng, num_lanes=num_lanes), rng.randint(0, 40)
    outer = rng.choice([None, 0, 1]) if num_lanes == 2 else None
    known = make_held_together(lanes, budget=budget, count=count, outer=outer)
    times, sizes = numpy.zeros((1, 1, places, 3), dtype=int), numpy.zeros((2, 1, 1, places), dtype=int)
    for place, lane in enumerate(lanes):
        times[0, 0, place] = lane.forward, lane.returning, lane.rest
        sizes[:, 0, 0, place] = lane.held, lane.kept
    most = most_in_cases(
        times, (sizes[0], sizes[1]), room=numpy.full((1, 1, places), budget),
        outer=numpy.array([[-1 if outer is None else outer]]), count=count,
    )  # fmt: skip
    said = [known.num_begun, known.begun_ns, known.left_ns, known.round_ns, known.work_ns, known.num_forwards]
    assert most[0, 0].tolist() == said

    starts, tails = (numpy.sort([rng.randint(0, 60) for _ in range(num_lanes * count)]) for _ in range(2))
    first, last, deadline = rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 150)
    padding = numpy.full((places - num_lanes) * count, FAR)
    is_dead = are_too_idle(
        numpy.append(starts, padding)[None, None], numpy.append(deadline - tails, -padding)[None, None],
        span=(numpy.array([[first]]), numpy.array([[deadline - last]])), most=most,
    )  # fmt: skip
    is_full = known.work_ns + first + last > deadline
    assert (bool(is_dead[0]) or is_full) == (known.lower_bound(starts, tails, first=first, last=last) > deadline)


def test_nothing_is_said_of_three_stages():
    """Tests that devices with more stages than are counted together are never too idle."""
    times = numpy.ones((1, 1, 3, 3), dtype=int)
    sizes = numpy.ones((1, 1, 3), dtype=int)
    most = most_in_cases(times, (sizes, sizes), room=sizes, outer=numpy.array([[-1]]), count=2)
    assert most[0, 0, NUM_FORWARDS] == 6
    late, early = numpy.full((1, 1, 6), 1_000), numpy.zeros((1, 1, 6), dtype=int)
    span = numpy.zeros((1, 1), dtype=int), numpy.full((1, 1), 100)
    assert not are_too_idle(late, early, span=span, most=most).any()


def test_a_stage_that_takes_no_time_holds_nothing_back():
    """Tests that what waits for such a stage on its own device may begin, as the best plan has it."""
    sizes = {"p": 4, "q": 6, "r": 5}
    layers = [make_layer(name, (0, 0, 0) if name == "p" else (1, 1, 0), state_bytes=sizes[name]) for name in sizes]
    problem = make_problem(layers, [make_link("a b")], edge_bytes=1, memory_bytes=9, max_replicas=1, receive_buffers=0)
    costs, best = CostModel(problem), brute_force(problem)
    assert best == 8
    assert refute(problem, costs, value=best, effort=EFFORT) is not None
    assert refute(problem, costs, value=best + 1, effort=EFFORT) is None


def scarce_problem(rng: Random) -> Problem:
    """A V of four stages, or a chain with chunks and replicas, in scarce memory."""
    problem = random_v(rng)[0] if rng.random() < 0.5 else random_chain(rng, sizes=(4, 2, 3), tight=True)
    options = replace(problem.options, objective="makespan", max_stages_per_device=2)
    return replace(problem, options=options)


NEVER_IDLE = patch.object(
    order_windows, "are_too_idle", lambda starts, *_, **__: numpy.zeros(len(starts), dtype=numpy.bool_)
)
"""Without the rule."""


@pytest.mark.slow
def test_no_best_order_is_refuted():
    """Tests that nothing is refuted that brute force finds, and no less than without the rule."""
    num_problems = 0
    for seed in range(shortened(60, whole=1_500)):
        problem = scarce_problem(Random(seed))
        best = brute_force(problem)
        if not best:
            continue
        costs, num_problems = CostModel(problem), num_problems + 1
        assert refute(problem, costs, value=best + 1, effort=EFFORT) is None, f"seed {seed}"
        bound = refute(problem, costs, value=best, effort=EFFORT)
        with NEVER_IDLE:
            without = refute(problem, costs, value=best, effort=EFFORT)
        assert bound is not None or without is None, f"seed {seed}"
        assert bound is None or check_certificate(problem, bound.certificate) == best, f"seed {seed}"
    assert num_problems > shortened(30, whole=700)


def test_what_needed_a_tree_is_closed_at_once():
    """Tests that where memory is scarce the rule closes the last case, which takes a tree of 107 nodes without it."""
    problem = make_chain(
        [(4, 5, 1), (7, 8, 2), (2, 2, 0), (7, 9, 4)], num_devices=2, num_microbatches=3, memory=4, stash=(1, 1),
        options=Options(receive_buffers=0, max_replicas=1, max_stages_per_device=2),
    )  # fmt: skip
    bound = refute(problem, CostModel(problem), value=91, effort=EFFORT)
    assert bound is not None
    assert bound.certificate["trees"] == []
    assert check_certificate(problem, bound.certificate) == 91
    with NEVER_IDLE:
        without = refute(problem, CostModel(problem), value=91, effort=EFFORT)
    assert without is not None
    assert list(map(len, without.certificate["trees"])) == [107]
