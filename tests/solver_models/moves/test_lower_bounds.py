"""Tests of solver_models/moves/lower_bounds.py."""

from random import Random

import pytest
from hypothesis import given

from solver_models.moves.lower_bounds import net_lower_bound
from tests.solver_models.nets import random_case, random_policy_params
from tests.solver_models.simulation.test_evaluator import randoms
from tests.strategies import random_schedule


@pytest.mark.parametrize("overlap", [True, False])
@given(rng=randoms)
def test_no_order_is_faster_than_the_floor(overlap: bool, rng: Random):
    """Tests that the makespan of every order is at least the floor of its net."""
    case = random_case(rng, overlap=overlap)
    floor = net_lower_bound(case.net)
    orders = [case.searcher.device_orders(case.candidate(policy_params=random_policy_params(rng)))[0] for _ in range(3)]
    orders.append(case.device_orders(random_schedule(rng, case.problem, stages=case.stages)))
    assert all(case.play(words).makespan_ns >= floor for words in orders)
