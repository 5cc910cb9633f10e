"""Some microbatches recompute where not all fit: plans that are valid, and no slower than without that choice."""

from dataclasses import replace
from random import Random

import pytest

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.check_evidence import rederive
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.bounds.test_recompute_bound import recomputing_problem
from tests.planner.hasty import make_plan
from tests.planner.recomputed_chain import recomputed_chain


def without(problem: Problem) -> Problem:
    """The question in which a stage recomputes every microbatch or none."""
    return replace(problem, options=replace(problem.options, recompute_microbatches=False))


@pytest.mark.slow
def test_some_microbatches_recompute():
    """Tests that of four microbatches on three devices, with room for two, some recompute and the plan is faster."""
    problem = recomputed_chain(3, num_microbatches=4, kept=1)
    limits = Limits(time_limit_s=60, max_rounds=2)
    found, before = (make_plan(each, limits=limits) for each in (problem, without(problem)))
    assert verify(problem, found).passed
    assert found.evidence.makespan_ns < before.evidence.makespan_ns
    assert any(stage.recompute_microbatches for stage in found.stages)
    again = rederive(problem, found, with_baselines=False)
    assert not again.differences, again.differences


@pytest.mark.slow
def test_random_problems_are_planned_soundly():
    """Tests that plans of random problems with little memory are valid, and their bounds can be derived again."""
    for seed in range(shortened(4, whole=60)):
        problem = recomputing_problem(Random(seed))
        problem = replace(problem, options=replace(problem.options, recompute_microbatches=True))
        try:
            plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
        except (InfeasibleProblemError, NoPlanFoundError):
            continue
        assert verify(problem, plan).passed
        assert plan.evidence.lower_bound_ns <= plan.evidence.makespan_ns
        assert plan.evidence.schedule_bound_ns is None or plan.evidence.schedule_bound_ns <= plan.evidence.makespan_ns
