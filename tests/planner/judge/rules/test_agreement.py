"""Rules: it fits, and core and judge find the same timeline: tests of planner/judge/rules/agreement.py."""

import pytest

from planner.judge.rules import agreement
from tests.planner.judge.broken_plans import of_module, require_alone


@pytest.mark.parametrize("rule", of_module(agreement))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
