"""Every demo, planned within seconds, has evidence that is derived again: whatever there was no time for."""

import pytest

from planner.batch_problem import BatchProblem, problem_for, question_of_workload
from planner.evidence.check_evidence import rederive
from planner.planning import Limits
from planner.problem import Options
from profiles.documents.validation import validate
from profiles.load import demo_names, load_workload
from tests.long_runs import long_only
from tests.planner.hasty import make_plan


@long_only
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, 2, 5])
@pytest.mark.parametrize("name", demo_names())
def test_a_demo_planned_in_seconds_verifies(name: str, seconds: int):
    """Tests that no plan is rejected for what its table of baselines lacks, and that the table names all of that."""
    workload = load_workload(f"demo:{name}")
    question = question_of_workload(workload, validate(Options, dict(workload.options), source="demo"))
    plan = make_plan(question, limits=Limits(time_limit_s=seconds))
    problem = problem_for(question, plan) if isinstance(question, BatchProblem) else question
    outcome = rederive(problem, plan, with_baselines=True)
    assert outcome.passed, [*outcome.verdict.violations, *outcome.differences]
    assert not any("has no row" in note.message for note in outcome.notes)
