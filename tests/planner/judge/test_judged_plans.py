"""Plans with figures that neither core nor judge made: what both of them read wrongly shows here.

`tests/golden/judged_plans.jsonl` has a workload, a plan and its figures in every line. A third reading of the contract,
made instant by instant and retired since, found these figures; where the contract changes, they are changed by hand.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.batch_problem import problem_answered
from planner.document import plan_from_plain
from planner.errors import PlanError
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.documents.validation import validate
from profiles.load import workload_of
from tests.long_runs import shortened
from tests.planner.judge.core_faults import CORE_FAULTS
from tests.planner.judge.judge_faults import JUDGE_FAULTS
from tests.planner.judged import judged

LINES = (Path(__file__).parents[2] / "golden" / "judged_plans.jsonl").read_text(encoding="utf-8").splitlines()

SHARED_FAULTS = [fault for fault in CORE_FAULTS if fault in JUDGE_FAULTS]
"""What can be wrong in both in the same way."""


@cache
def parsed() -> tuple[tuple[Problem, Plan, dict[str, Any]], ...]:
    """Every plan with its problem and its figures."""
    return tuple(parse())


def parse() -> Iterator[tuple[Problem, Plan, dict[str, Any]]]:
    """The same, line by line."""
    for row in map(json.loads, LINES):
        plan, workload = plan_from_plain(row["plan"]), workload_of(row["workload"], source="golden")
        options = validate(Options, dict(plan.problem.options), source="options")
        assert workload.cluster is not None
        known = {"profile": workload.profile, "cluster": workload.cluster, "options": options}
        yield problem_answered(plan.problem, **known), plan, row["figures"]


def judged_plans() -> Iterator[tuple[Problem, Plan, dict[str, Any]]]:
    """All of them; clusters remember no routes."""
    for problem, plan, figures in parsed():
        yield replace(problem, cluster=replace(problem.cluster)), plan, figures


def is_as_stated(problem: Problem, plan: Plan, figures: dict[str, Any]) -> bool:
    """Whether core and judge agree on these figures."""
    try:
        found = judged(problem, plan)
    except (AssertionError, PlanError, ValueError):
        return False
    times = found.makespan_ns, found.span_ns
    return times == (figures["makespan_ns"], figures["span_ns"]) and found.peak_bytes == figures["peak_bytes"]


def test_core_and_judge_find_the_figures():
    """Tests that every plan is valid, and that core and judge find the figures that stand beside it."""
    for number, (problem, plan, figures) in enumerate(judged_plans()):
        assert verify(problem, plan).violations == (), number
        assert is_as_stated(problem, plan, figures), number
        assert judged(problem, plan).bubble == pytest.approx(figures["bubble"], abs=1e-11), number


@pytest.mark.parametrize("fault", SHARED_FAULTS[:: shortened(3, whole=1)])
def test_what_both_read_wrongly_shows(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that with the same thing wrong in core and judge the figures of some plan are others."""
    CORE_FAULTS[fault](monkeypatch)
    JUDGE_FAULTS[fault](monkeypatch)
    assert not all(is_as_stated(*each) for each in judged_plans())


def test_everything_occurs_in_them():
    """Tests that replicas, groups, shards, unequal shares, recomputation and listed sizes are among them."""
    plans = [(problem, plan) for problem, plan, _ in judged_plans()]
    stages = [stage for _, plan in plans for stage in plan.stages]
    assert any(len(stage.replicas) > 1 for stage in stages)
    assert any(len(stage.replicas[0]) > 1 for stage in stages)
    assert any(stage.is_sharded for stage in stages)
    assert any(stage.samples for stage in stages)
    assert any(stage.recompute is True for stage in stages)
    assert any(isinstance(stage.recompute, tuple) and stage.recompute for stage in stages)
    assert any(plan.dealing for _, plan in plans)
    assert any(not problem.cluster.overlap for problem, _ in plans)
    assert {problem.options.synchronisation for problem, _ in plans} == {"after", "bucketed"}
    assert any(link.message_times for problem, _ in plans for link in problem.cluster.links)
