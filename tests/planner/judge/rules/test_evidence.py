"""Rules: what the evidence states is true: tests of planner/judge/rules/evidence.py."""

import pytest

from planner.judge.rules import evidence
from tests.planner.judge.broken_plans import of_module, require_alone


@pytest.mark.parametrize("rule", of_module(evidence))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
