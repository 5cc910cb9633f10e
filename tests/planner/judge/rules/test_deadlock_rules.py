"""Rules: tests of planner/judge/rules/deadlock_rules.py."""

import pytest

from planner.errors import PlanError
from planner.judge.rules import deadlock_rules
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.builders import (
    make_plan,
)
from tests.planner.judge.broken_plans import of_module, require_alone
from tests.planner.judge.rules.test_split_placement import input_grad_elsewhere


def test_deadlocks_between_parts_are_found():
    """Tests that a W that stands before the F of another stage that its own I elsewhere waits for is a cycle."""
    problem, plan = input_grad_elsewhere()
    words = {"a": "0W0 0F0 0F1 0W1", "b": "0I0 0I1"}
    (violation,) = verify(problem, make_plan(problem, list(plan.stages), words)).violations
    assert violation.message == (
        "The schedule deadlocks: 0W0 on a, which waits for 0I0 on b, which waits for 0F0 on a, "
        "which waits for 0W0 on a."
    )
    with pytest.raises(PlanError, match="deadlocks"):
        simulate(problem, make_plan(problem, list(plan.stages), words))


def test_actions_on_the_wrong_device_are_not_played():
    """Tests that the simulator refuses an I where the stage has only F and W."""
    problem, plan = input_grad_elsewhere()
    with pytest.raises(PlanError, match="a cannot run 0I0: of stage 0 it runs only FW"):
        simulate(problem, make_plan(problem, list(plan.stages), {"a": "0F0 0I0 0F1 0W0 0W1", "b": "0I0 0I1"}))


@pytest.mark.parametrize("rule", of_module(deadlock_rules))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
