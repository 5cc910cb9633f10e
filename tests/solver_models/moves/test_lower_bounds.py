"""Tests of solver_models/moves/lower_bounds.py."""

from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given

from planner.plan import Stage
from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.device_rows import MEMORY
from solver_models.moves.lower_bounds import net_estimates, net_lower_bound, net_lower_bounds
from tests.solver_models.nets import Case, random_case, random_policy_params
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


@given(rng=randoms)
def test_the_estimate_differs_only_where_memory_is_scarce(rng: Random):
    """Tests that it is the bound where all microbatches fit, and never below it."""
    net = random_case(rng, is_tight=True).net
    floor, estimate = net_lower_bounds(net), net_estimates(net)
    assert estimate[0] >= floor[0]
    assert estimate[1] >= floor[1]
    net.devices[:, MEMORY] = 1 << 40
    assert net_estimates(net) == net_lower_bounds(net)


def test_stays_share_the_memory_of_a_device():
    """Tests that microbatches wait for room: of six stages of 12 ticks, one device has the first and the last, and
    room for 3 of the 12 units of six microbatches. They stay 72 and 12 ticks, then the first stage's W takes 4.
    """
    cost = LayerCost(device_type="t", forward_ns=4, input_grad_ns=4, weight_grad_ns=4)
    layers = tuple(
        Layer(name=name, costs=(cost,), parameter_bytes=1, state_bytes=1, stash_bytes=1) for name in "abcdef"
    )
    edges = tuple(Edge(producer=one, consumer=other, bytes=0) for one, other in pairwise("abcdef"))
    devices = tuple(Device(name=name, type="t", memory_bytes=5 if name == "0" else 100) for name in "01234")
    links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=1, latency_ns=0) for a, b in combinations("01234", 2))
    problem = Problem(
        profile=ModelProfile(name="loop", layers=layers, edges=edges),
        cluster=Cluster(name="five", devices=devices, links=links),
        num_microbatches=6,
    )
    stages = tuple(Stage(layers=(name,), replicas=((on,),)) for name, on in zip("abcdef", "012340", strict=True))
    net = Case(problem, stages).net
    assert net_estimates(net)[0] == 6 * (72 + 12) // 3 + 4
    assert net_lower_bounds(net)[0] < 6 * (72 + 12) // 3
