"""Cuts of a model into stages, checked against every cut there is."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.partitions import Partition, even_layers, smallest_largest_stage
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem
from tests.strategies import problems, random_chain


def every_cut(problem: Problem, num_stages: int) -> Iterator[Partition]:
    order = problem.profile.topological_order
    for inner in combinations(range(1, len(order)), num_stages - 1):
        yield tuple(order[a:b] for a, b in pairwise((0, *inner, len(order))))


def largest_stage_ns(costs: CostModel, partition: Partition, devices: tuple[str, ...]) -> int:
    largest = 0
    for layers, device in zip(partition, devices, strict=True):
        cost = costs.stage_cost(Stage(layers=layers, replicas=((device,),)), 0)
        largest = max(largest, cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns)
    return largest


def largest_transfer_ns(costs: CostModel, partition: Partition, devices: tuple[str, ...]) -> int:
    """Between neighbours; on a chain, where nothing else flows."""
    stages = [Stage(layers=layers, replicas=((d,),)) for layers, d in zip(partition, devices, strict=True)]
    largest = 0
    for (a, b), traffic in costs.traffic(stages).items():
        size = max(traffic.forward_bytes, traffic.backward_bytes)
        route = costs.problem.cluster.route(devices[a], devices[b], num_bytes=size)
        largest = max(largest, route.duration_ns(size))
    return largest


def drawn_devices(rng: Random, problem: Problem) -> tuple[str, ...]:
    """Distinct devices in random order, no more than there are layers."""
    names = [device.name for device in problem.cluster.devices]
    return tuple(rng.sample(names, rng.randint(1, min(len(names), len(problem.profile.layers)))))


@given(problem=problems(), num_stages=st.integers(1, 6))
def test_even_layers_differ_by_one(problem: Problem, num_stages: int):
    """Tests that every layer is in one stage, in topological order, and that layer counts differ by at most one."""
    num_stages = min(num_stages, len(problem.profile.layers))
    partition = even_layers(problem, num_stages)
    assert sum(partition, ()) == problem.profile.topological_order
    counts = [len(layers) for layers in partition]
    assert len(counts) == num_stages
    assert max(counts) - min(counts) <= 1


@given(problem=problems(), rng=st.randoms(use_true_random=False))
def test_no_cut_has_a_smaller_largest_stage(problem: Problem, rng: Random):
    """Tests that none of all the cuts has a smaller largest stage, whatever the types of the devices."""
    costs, devices = CostModel(problem), drawn_devices(rng, problem)
    partition = smallest_largest_stage(costs, devices)
    assert sum(partition, ()) == problem.profile.topological_order
    assert all(partition)
    best = min(largest_stage_ns(costs, cut, devices) for cut in every_cut(problem, len(devices)))
    assert largest_stage_ns(costs, partition, devices) == best


@given(rng=st.randoms(use_true_random=False))
def test_no_cut_has_a_smaller_largest_stage_or_transfer(rng: Random):
    """Tests that counting transfers gives the best of all cuts of a chain, up to rounding."""
    problem = random_chain(rng, sizes=(6, 3, 2), tight=False)
    costs, devices = CostModel(problem), drawn_devices(rng, problem)

    def largest(cut: Partition) -> int:
        return max(largest_stage_ns(costs, cut, devices), largest_transfer_ns(costs, cut, devices))

    partition = smallest_largest_stage(costs, devices, counts_transfers=True)
    routes = {costs.problem.cluster.route(a, b, num_bytes=s).links for a, b in pairwise(devices) for s in (0, 4, 8)}
    if len(routes) == len(devices) - 1:  # where routes depend on the size, the transfer times are estimates
        assert largest(partition) == min(largest(cut) for cut in every_cut(problem, len(devices)))


def test_too_few_layers():
    """Tests that more stages than layers are refused with the two numbers."""
    problem = random_chain(Random(1), sizes=(1, 2, 1), tight=False)
    with pytest.raises(DoesNotApplyError, match="has 1 layers for 2 stages"):
        even_layers(problem, 2)
    with pytest.raises(DoesNotApplyError, match="has 1 layers for 2 stages"):
        smallest_largest_stage(CostModel(problem), [problem.cluster.devices[0].name] * 2)
