"""The counting bound: against brute force and plans, on an optimum that is known, against made-up certificates."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.counting import applies_to, climb
from planner.bounds.minimum_costs import Least
from planner.certificate import check_certificate, make_bound
from planner.costs import CostModel
from planner.problem import Problem
from tests.long_runs import examples
from tests.planner.oracle import brute_force
from tests.planner.test_certificate import make_chain, plans_of
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
    found = climb(least, 0) if applies_to(least) else None
    return 0 if found is None else found[0] + problem.profile.optimizer_ns


@settings(max_examples=examples(150), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_denied(rng):
    """Tests that the bound is never above the optimum of tiny problems."""
    problem = unreplicated(tiny_problem(rng))
    best = brute_force(problem)
    if best is not None:
        assert counted(problem) <= best


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
        ({"unit": 0}, "unit is no integer"),
        ({"unit": True}, "unit is no integer"),
        ({"special": ["nobody"]}, "no short list of layers"),
        ({"special": "l0"}, "no short list of layers"),
        ({"value_ns": 10**9}, "does not rule out"),
    ],
)
def test_made_up_certificates_are_refused(change, message):
    """Tests that what is no counting, or proves less than it states, is refused."""
    problem = unreplicated(make_chain([(1000, 1000, 1000)] * 9, num_devices=4, num_microbatches=10))
    certificate = {"kind": "counting", "value_ns": 90_001, "unit": 3000, "special": []}
    assert counted(problem) >= 90_000
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, {**certificate, **change})
