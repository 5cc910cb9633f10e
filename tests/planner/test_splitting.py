"""Weight gradients moved to other devices where that pays, transfers counted."""

import pytest

from benchmarks.convnets import NETWORKS
from benchmarks.seeds_layer_pipe import make_problem
from planner.baselines.layer_pipe.plans import make_split_plan
from planner.baselines.layouts import ONE_EACH, SMALLEST_LARGEST, make_stages
from planner.costs import CostModel
from planner.planning.splitting import one_by_one, split_further
from planner.simulate import simulate
from planner.verify import verify
from tests.planner.builders import make_layer, make_link
from tests.planner.builders import make_problem as make_small_problem


def test_weight_gradient_leaves_the_busy_device():
    """Tests that a long W goes to an idle device where nothing has to travel far, and stays where bytes are many."""
    for stash, leaves in ((1, True), (10_000, False)):
        layers = [make_layer("a", (1, 1, 50), stash_bytes=stash, weight_stash_bytes=stash), make_layer("b", (1, 1, 50))]
        problem = make_small_problem(
            layers, [make_link("d0 d1")], num_microbatches=4, split_placement=True, max_stages_per_device=2,
            memory_bytes=10**7,
        )  # fmt: skip
        costs = CostModel(problem)
        whole = make_stages(costs, ONE_EACH, cut=SMALLEST_LARGEST)
        on_first = tuple(stage.__class__(layers=stage.layers, replicas=(("d0",),)) for stage in one_by_one(whole))
        plan = split_further(costs, on_first)
        assert verify(problem, plan).passed
        assert plan.stages[0].weight_grad_replicas == () if not leaves else True
        assert any(stage.weight_grad_replicas for stage in plan.stages)
        assert simulate(problem, plan).makespan_ns < simulate(problem, make_split_plan(costs, on_first)).makespan_ns


def test_splitting_shortens_a_network():
    """Tests that on VGG11's shapes some W elsewhere makes the iteration shorter, and the plan is valid."""
    problem = make_problem(NETWORKS["VGG11"], 8)
    costs = CostModel(problem)
    stages = one_by_one(make_stages(costs, ONE_EACH, cut=SMALLEST_LARGEST))
    plan = split_further(costs, stages, most_trials=12)
    assert verify(problem, plan).passed
    assert simulate(problem, plan).makespan_ns < simulate(problem, make_split_plan(costs, stages)).makespan_ns


def test_option_is_needed():
    """Tests that a start that breaks a rule is refused with what to do."""
    layers = [make_layer("a", (1, 1, 1), stash_bytes=100, weight_stash_bytes=1)]
    problem = make_small_problem(layers, [make_link("d0 d1")], memory_bytes=10, split_placement=True)
    costs = CostModel(problem)
    with pytest.raises(ValueError, match="split_placement"):
        split_further(costs, make_stages(costs, ONE_EACH, cut=SMALLEST_LARGEST))
