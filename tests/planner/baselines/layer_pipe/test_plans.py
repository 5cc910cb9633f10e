"""LayerPipe: the expected ratios from layer shapes, and plans in which F, I and W of a layer are apart."""

import pytest

from benchmarks.convnets import NETWORKS
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.verify import verify
from tests.integration.layer_pipe_problem import make_problem
from tests.planner.builders import make_layer, make_link
from tests.planner.builders import make_problem as make_small_problem


def test_shapes_are_those_of_the_networks():
    """Tests that multiply-accumulates and numbers of convolutions are those that everyone knows."""
    billions = {name: sum(shape.macs for shape in shapes) / 1e9 for name, shapes in NETWORKS.items()}
    assert {name: round(value, 1) for name, value in billions.items()} == {
        "VGG16": 15.5, "VGG11": 7.6, "ResNet-50": 4.1, "ResNet-101": 7.8
    }  # fmt: skip
    assert len([shape for shape in NETWORKS["ResNet-50"] if shape.name != "fc"]) == 53
    assert len([shape for shape in NETWORKS["ResNet-101"] if shape.name != "fc"]) == 104


@pytest.mark.parametrize("halves", [False, True])
def test_plan_is_valid(halves: bool):
    """Tests that a plan with tasks apart passes the verifier, and that without halves no I is cut."""
    problem = make_problem(4)
    plan = make_layer_pipe_plan(CostModel(problem), halves=halves)
    verdict = verify(problem, plan)
    assert verdict.violations == ()
    assert verdict.timeline is not None
    assert any(stage.weight_grad_replicas for stage in plan.stages)
    assert any(len(stage.input_grad_replicas) == 2 for stage in plan.stages) == halves
    assert sum(sent.num_bytes for sent in verdict.timeline.transfers) > 0


def test_bytes_by_hand():
    """Tests that bytes are counted for a plan with W elsewhere: stash each time, finished gradient once."""
    layers = [make_layer("a", (4, 0, 4), stash_bytes=30, weight_stash_bytes=20, parameter_bytes=7)]
    problem = make_small_problem(layers, [make_link("d0 d1")], num_microbatches=3, split_placement=True)
    plan = make_layer_pipe_plan(CostModel(problem), halves=False)
    assert plan.stages[0].weight_grad_replicas
    verdict = verify(problem, plan)
    assert verdict.timeline is not None
    assert sum(sent.num_bytes for sent in verdict.timeline.transfers) == 3 * 20 + 7


def test_layers_without_weights():
    """Tests that a layer without W names nobody for it, and that the plan is valid."""
    layers = [make_layer("a", (4, 4, 4)), make_layer("b", (4, 4, 0)), make_layer("c", (4, 4, 4))]
    problem = make_small_problem(
        layers, [make_link("d0 d1")], num_microbatches=2, split_placement=True, max_stages_per_device=3
    )
    plan = make_layer_pipe_plan(CostModel(problem))
    assert plan.stages[1].weight_grad_replicas == ()
    assert verify(problem, plan).passed


def test_what_does_not_apply():
    """Tests that without split placement, or with fewer stages per device, the method says so."""
    problem = make_problem(4)
    for options, reason in ((Options(), "split_placement"), (Options(split_placement=True), "stages per device")):
        asked = Problem(profile=problem.profile, cluster=problem.cluster, num_microbatches=4, options=options)
        with pytest.raises(DoesNotApplyError, match=reason):
            make_layer_pipe_plan(CostModel(asked))
