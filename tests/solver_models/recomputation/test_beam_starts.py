"""Device orders from beams: as the judge plays them, and within memory; solver_models/recomputation/beam_starts.py."""

from dataclasses import replace

import pytest

from planner.problem import Problem
from planner.verify import verify
from solver_models.recomputation.beam_starts import make_beams
from solver_models.recomputation.microbatch_recomputation import RecomputedOrders
from tests.planner.builders import make_stage
from tests.planner.recomputed_chain import given_stages, recomputed_chain
from tests.solver_models.recomputation.test_microbatch_recomputation import plan_of, searched


def beams_of(problem: Problem, *, width: int) -> list[RecomputedOrders]:
    """What the beams of the given stages end with."""
    beams = make_beams(searched(problem, given_stages(problem)))
    return [found for each in beams for found in each.search_all(width=width, seed=1, has_time=lambda: True)]


def uneven(problem: Problem) -> Problem:
    """The same stages with other times each."""
    layers = []
    for number, layer in enumerate(problem.profile.layers):
        times = {"forward_ns": 8 + number, "input_grad_ns": 12 - number, "backward_ns": 22 - number}
        layers.append(replace(layer, costs=tuple(replace(cost, **times) for cost in layer.costs)))
    return replace(problem, profile=replace(problem.profile, layers=tuple(layers)))


@pytest.mark.parametrize(("kept", "best"), [(3, 280), (2, 310), (1, 360)])
def test_good_plans_are_found(kept: int, best: int):
    """Tests that four stages end at the optimum, or one action (of 300) later, by a plan that the judge passes."""
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    found = min(beams_of(problem, width=100), key=lambda each: each.end)
    assert found.end <= best
    assert verify(problem, plan_of(problem, given_stages(problem), found)).passed


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kept", [1, 2.5])
def test_what_is_found_is_a_plan(split: bool, kept: float):
    """Tests that stages of other times each, with whole or split backwards, are played and fit as the judge says."""
    problem = uneven(recomputed_chain(3, num_microbatches=5, kept=kept, split_backward=split))
    found = beams_of(problem, width=20)
    assert found
    for each in found[::7]:
        report = verify(problem, plan_of(problem, given_stages(problem), each))
        assert report.passed


def test_only_chains_have_beams():
    """Tests that two stages on a device, and two replicas of a stage, are left to others."""
    for options, text in (
        ({"max_stages_per_device": 2}, "l0 @ d0; l1 @ d1; l2 @ d1; l3 @ d0"),
        ({"max_replicas": 2}, "l0 l1 @ d0 | d1; l2 @ d2; l3 @ d3"),
    ):
        problem = recomputed_chain(4, num_microbatches=5, kept=2, partition=None, placement=None, **options)
        assert make_beams(searched(problem, tuple(map(make_stage, text.split("; "))))) == []
    problem = recomputed_chain(2, num_microbatches=61, kept=2)
    assert make_beams(searched(problem, given_stages(problem))) == []
