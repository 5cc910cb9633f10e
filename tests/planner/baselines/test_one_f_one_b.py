"""1F1B (PipeDream-Flush, Narayanan et al., 2021, arXiv 2006.09503): tests of planner/baselines/one_f_one_b.py."""

import pytest

from planner.baselines.one_f_one_b import order_one_f_one_b
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.baselines.sequential import assign_sequential
from planner.layout.costs import CostModel
from planner.verify import verify
from tests.planner.baselines.drawings import require_as_kept
from tests.planner.baselines.test_sequential import make_problem


@pytest.mark.parametrize("memory", ["loose", "tight", "scarce"])
def test_one_forward_one_backward_fits(memory: str):
    """Tests that where the full depth was granted, 1F1B on the stages passes the verifier, memory included."""
    problem = make_problem(f"chain-48x8-m16-{memory}-two-level-classes")
    costs = CostModel(problem)
    seating = assign_sequential(costs)
    plan = make_plan(costs, seating.stages, device_orders=order_one_f_one_b(make_pipeline(costs, seating.stages)))
    if seating.in_flight == len(problem.cluster.devices):
        assert verify(problem, plan).passed
    else:
        assert memory == "scarce"


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("1F1B")
