"""Out-of-order backprop in a pipeline: tests of planner/baselines/out_of_order/pipelined.py."""

import pytest

from planner.baselines.alternation import order_gpipe
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.out_of_order.pipelined import (
    group_sizes,
    make_fast_forward_plan,
    make_modulo_plan,
    make_modulo_stages,
)
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.baselines.test_data_parallel import unit_problem


def gpipe_ns(problem: Problem) -> int:
    costs = CostModel(problem)
    stages = make_modulo_stages(costs, mod=6)
    return simulate(
        problem, make_plan(costs, stages, device_orders=order_gpipe(make_pipeline(costs, stages)))
    ).makespan_ns


@pytest.mark.parametrize(
    ("num_microbatches", "mod", "ratio"), [(4, 6, 1.17), (4, 1, 1.62), (4, 2, 1.50), (4, 3, 1.40), (8, 1, 1.32)]
)
def test_unit_cost_ratios(num_microbatches: int, mod: int, ratio: float):
    """Tests that fast-forwarding (mod 6: one stage per device) and modulo beat GPipe as expected, to two digits."""
    problem = unit_problem(num_microbatches, max_stages_per_device=24 // (4 * mod))
    plan = make_modulo_plan(CostModel(problem), mod=mod)
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert round(gpipe_ns(problem) / verdict.timeline.makespan_ns, 2) == ratio
    if mod == 6:
        assert plan.stages == make_fast_forward_plan(CostModel(problem)).stages


def test_best_group_is_taken():
    """Tests that without a given size the shortest plan is taken, and that the options limit the stages per device."""
    problem = unit_problem(4, max_stages_per_device=6)
    costs = CostModel(problem)
    assert group_sizes(costs) == [3, 2, 1]
    assert simulate(problem, make_modulo_plan(costs)).makespan_ns == 78_000
    assert group_sizes(CostModel(unit_problem(4))) == [3]
    with pytest.raises(DoesNotApplyError, match="at least 2 stages per device"):
        make_modulo_plan(CostModel(unit_problem(4, max_stages_per_device=1)))
