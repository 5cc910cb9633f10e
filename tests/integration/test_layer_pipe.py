"""LayerPipe's placement on real processes."""

import json

from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.layout.costs import CostModel
from planner.simulation.simulate import simulate
from tests.integration.forked_ranks import run_module
from tests.integration.layer_pipe_problem import make_problem


def test_weight_gradients_on_other_ranks():
    """Tests that four processes with W elsewhere than F, and halved I, have the gradients and bytes that are due."""
    answer = json.loads(run_module("tests.integration.layer_pipe_worker", 4))
    assert answer["worst_relative_difference"] < 1e-5
    assert answer["weight_grads_elsewhere"] >= 4
    assert answer["input_grads_halved"] >= 1
    problem = make_problem(4)
    costs = CostModel(problem)
    timeline = simulate(problem, make_layer_pipe_plan(costs))
    assert answer["bytes_moved"] == sum(sent.num_bytes for sent in timeline.transfers)
