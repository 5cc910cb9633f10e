"""What a scheduling method sees of a problem whose stages are placed: tests of planner/baselines/pipeline.py."""

from benchmarks.capped_uniform import make_uniform
from planner.baselines.idealised import twins
from planner.baselines.layouts import GIVEN
from planner.baselines.pipeline import make_pipeline
from planner.baselines.registry import make_method_plan
from planner.layout.costs import CostModel
from tests.planner.baselines.test_idealised import CAPPED


def test_an_ideal_pipeline_has_no_twin():
    """Tests that nothing is tried twice where there is nothing to idealise."""
    problem = make_uniform(4, num_microbatches=8, room=2)
    costs = CostModel(problem)
    stages = make_method_plan(costs, CAPPED, cut=GIVEN).stages
    assert list(twins(make_pipeline(costs, stages))) == []
