"""Rules: stages stand in a loop, and every rank runs 1F1B: tests of planner/judge/rules/loops.py."""

import pytest

from planner.judge.rules import loops
from tests.planner.judge.broken_plans import of_module, require_alone


@pytest.mark.parametrize("rule", of_module(loops))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
