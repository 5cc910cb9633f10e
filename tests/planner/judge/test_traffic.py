"""Tests of planner/judge/traffic.py."""

from dataclasses import replace
from typing import Any

import pytest

from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.verify import verify
from tests.planner.decisions.unequal_shares.test_option import three_to_one


def whole_shares(problem: Problem, plan: Plan, patch: pytest.MonkeyPatch, fault: Any) -> bool:
    """Whether judge and core agree on a plan under a fault in one of them."""
    with patch.context() as context:
        fault(context)
        return verify(replace(problem, cluster=replace(problem.cluster)), plan).passed


def equal_in_core(patch: pytest.MonkeyPatch) -> None:
    original = Stage.share_of
    patch.setattr(Stage, "share_of", lambda stage, replica: original(replace(stage, samples=()), replica))


def equal_in_judge(patch: pytest.MonkeyPatch) -> None:
    import planner.judge.stage_replicas as page

    original = page.cut
    patch.setattr(page, "cut", lambda stage: original(replace(stage, samples=())))


def equal_traffic_in_judge(patch: pytest.MonkeyPatch) -> None:
    import planner.judge.traffic as page

    original = page.cut
    patch.setattr(page, "cut", lambda stage: original(replace(stage, samples=())))


@pytest.mark.parametrize("fault", [equal_in_core, equal_in_judge, equal_traffic_in_judge])
def test_faults_are_noticed(fault: Any, monkeypatch: pytest.MonkeyPatch):
    """Tests that judge and core differ as soon as one of them takes unequal shares for equal ones."""
    problem, plan = three_to_one()
    assert whole_shares(problem, plan, monkeypatch, lambda _: None)
    assert not whole_shares(problem, plan, monkeypatch, fault)
