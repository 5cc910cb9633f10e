"""Rules: tests of planner/judge/rules/groups.py."""

import pytest

from planner.judge.rules import groups
from tests.planner.brute_force import brute_force
from tests.planner.decisions.unequal_shares.test_option import evidence, planned, unlike_pair
from tests.planner.judge.broken_plans import of_module, require_alone
from tests.strategies import with_memory


@pytest.mark.slow
def test_memory_limits_the_samples():
    """Tests that a device whose memory holds two samples gets no more, whatever its speed."""
    free = unlike_pair()
    tight = with_memory(free, {"a": 10 + 2 * 2})
    plan = planned(tight)
    assert evidence(plan).makespan_ns == brute_force(tight)
    taken = {group: n for stage in plan.stages for group, n in zip(stage.replicas, stage.samples, strict=False)}
    assert taken.get(("a",), 0) <= 2


@pytest.mark.parametrize("rule", of_module(groups))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
