"""Rules: every device has its list, and the list has exactly its actions: tests of planner/judge/rules/lists.py."""

import pytest

from planner.judge.rules import lists
from tests.planner.judge.broken_plans import of_module, require_alone


@pytest.mark.parametrize("rule", of_module(lists))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
