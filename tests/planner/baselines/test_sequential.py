"""The sequential planner's first half against every cut and every seating."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generate import Family, make_workload, parse_family
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.sequential import FINENESS, assign_sequential
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from tests.long_runs import examples


def make_problem(name: str, *, seed: int = 0) -> Problem:
    workload = make_workload(parse_family(name, seed=seed))
    assert workload.cluster is not None
    return Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches or 1,
        options=Options(max_replicas=1, max_stages_per_device=1),
    )


def least_largest_stage(problem: Problem) -> int:
    """The smallest largest stage over all cuts and seatings of all devices, memory and transfers aside."""
    layers = [problem.profile.by_name[name] for name in problem.profile.topological_order]
    best = 10**18
    for seats in permutations(problem.cluster.devices):
        for inner in combinations(range(1, len(layers)), len(seats) - 1):
            cuts = pairwise((0, *inner, len(layers)))
            times = [
                sum(
                    cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns
                    for layer in layers[start:end]
                    for cost in layer.costs
                    if cost.device_type == device.type
                )
                for (start, end), device in zip(cuts, seats, strict=True)
            ]
            best = min(best, max(times))
    return best


@settings(max_examples=examples(15), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_no_cut_and_no_seating_is_better(seed: int):
    """Tests that on three unlike devices with loose memory the largest stage is the least of all."""
    problem = make_problem("chain-7x3-m4-loose-homogeneous-different", seed=seed)
    seating = assign_sequential(CostModel(problem))
    least = least_largest_stage(problem)
    if len(seating.stages) == 3:
        assert least * (1 - 1 / FINENESS) <= seating.limit_ns <= least * (1 + 3 / FINENESS) + 2


def test_nothing_fits():
    """Tests that a cluster too small for every cut is refused in a phrase."""
    problem = make_problem("chain-24x4-m8-scarce-homogeneous-classes")
    with pytest.raises(DoesNotApplyError, match="fits into memory"):
        assign_sequential(CostModel(problem))


def test_names_of_families_are_read_back():
    """Tests that a family's name says all of it, and that other names are refused with an example."""
    family = Family(
        shape="dag", num_layers=40, num_devices=4, num_microbatches=8, memory="scarce", links="random", speeds="classes"
    )
    assert parse_family(family.name) == family
    with pytest.raises(ValueError, match="chain-48x8-m32"):
        parse_family("chain-48x8")
