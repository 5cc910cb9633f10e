"""The counting bound: against brute force and plans, on an optimum that is known, against made-up certificates."""

from dataclasses import replace
from itertools import product

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.counting import applies_to, every_assignment, holds_all, raise_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.problem import Problem
from tests.long_runs import examples
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain, plans_of
from tests.strategies import random_problem, tiny_problem


def unreplicated(problem: Problem) -> Problem:
    """The problem without replicas, for the makespan."""
    return replace(
        problem,
        options=replace(problem.options, objective="makespan", max_replicas=1, split_placement=False, max_width=1),
    )


def counted(problem: Problem) -> int:
    """The largest makespan below which the counting bound denies every plan."""
    least = Least(problem, CostModel(problem))
    found = raise_bound(least, 0) if applies_to(least) else None
    return 0 if found is None else found[0] + problem.profile.optimizer_ns


@settings(max_examples=examples(150), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_denied(rng):
    """Tests that the bound is never above the optimum of tiny problems."""
    problem = unreplicated(tiny_problem(rng))
    best = brute_force(problem)
    if best is not None:
        assert counted(problem) <= best


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(-3, 30), min_size=1, max_size=5), st.lists(st.integers(0, 20), max_size=3), st.data())
def test_devices_with_equal_room_are_alike(room, special, data):
    """Tests that looking at few of the devices with equal room says what all ways to put layers on them say."""
    unit, units = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 20))
    rooms = numpy.array([each if each % 3 else 12 for each in room])

    def holds(seats: tuple[int, ...]) -> bool:
        left = list(rooms)
        for time, device in zip(special, seats, strict=True):
            left[device] -= time
        return all(left[device] >= 0 for device in seats) and sum(max(each, 0) // unit for each in left) >= units

    wanted = any(holds(seats) for seats in product(range(len(rooms)), repeat=len(special)))
    seats = every_assignment(rooms, len(special))
    taken = numpy.array(special, dtype=numpy.int64).reshape(-1, 1, 1) + numpy.zeros_like(rooms)
    found = holds_all(rooms[None], seats, special=taken, units=units, count=lambda left: left[:, 0].clip(0) // unit)
    assert found == wanted


def test_hundreds_of_devices_are_counted_in_little_memory():
    """Tests that two special layers on 512 devices take thousands of ways, not a table of ways by devices."""
    room = numpy.concatenate([numpy.arange(100), numpy.full(412, 100)])
    assert len(every_assignment(room, 2)) == 102**2
    assert every_assignment(room, 0).shape == (1, 0)


@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_denied(rng):
    """Tests that no random plan of random problems, graphs among them, is denied."""
    problem = unreplicated(random_problem(rng))
    for tight, _, value in plans_of(rng, problem, tries=2):
        assert counted(tight) <= value


def test_whole_layers_are_counted():
    """Tests that nine equal layers on four devices are three on one of them, which the work bound misses."""
    problem = unreplicated(make_chain([(1000, 1000, 1000)] * 9, num_devices=4, num_microbatches=10))
    bound = make_bound(problem, CostModel(problem))
    assert bound.value_ns >= 10 * 3 * 3000
    assert counted(problem) >= 10 * 3 * 3000
    assert check_certificate(problem, bound.certificate) == bound.value_ns


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": 0}, "unit is not an integer"),
        ({"unit": True}, "unit is not an integer"),
        ({"special": ["nobody"]}, "not a short list of layers"),
        ({"special": "l0"}, "not a short list of layers"),
        ({"value_ns": 10**9}, "does not exclude"),
    ],
)
def test_made_up_certificates_are_refused(change, message):
    """Tests that what is no counting, or proves less than it states, is refused."""
    problem = unreplicated(make_chain([(1000, 1000, 1000)] * 9, num_devices=4, num_microbatches=10))
    certificate = {"kind": "counting", "value_ns": 90_001, "unit": 3000, "special": []}
    assert counted(problem) >= 90_000
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, {**certificate, **change})
