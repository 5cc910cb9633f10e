"""The problem as it really is: tests of planner/replanning/as_measured.py."""

from planner.layout.costs import CostModel
from planner.replanning.as_measured import exactly
from planner.replanning.diagnosis import diagnose
from tests.planner.replanning.test_observations import example, seen


def test_a_whole_backward_keeps_its_proportions():
    """Tests that where only B was measured I and W are both scaled by it, and that nothing else changes."""
    problem, plan = example()
    found = diagnose(problem, plan, seen=seen(B0=8000))
    costs = CostModel(exactly(problem, plan, scales=found.scales))
    assert [costs.stage_cost(plan.stages[0], 0).duration_ns(kind) for kind in "IWB"] == [4000, 4000, 8000]
    assert [costs.stage_cost(plan.stages[1], 0).duration_ns(kind) for kind in "FIWB"] == [2000, 2000, 2000, 4000]
