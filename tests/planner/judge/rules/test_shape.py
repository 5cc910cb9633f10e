"""Rules: the plan is made of what it should be made of: tests of planner/judge/rules/shape.py."""

import pytest

from planner.judge.rules import shape
from tests.planner.judge.broken_plans import of_module, require_alone


@pytest.mark.parametrize("rule", of_module(shape))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
