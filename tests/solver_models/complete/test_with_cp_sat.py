"""The complete programme for CP-SAT: tests of solver_models/complete/with_cp_sat.py."""

import pytest

from planner.layout.costs import CostModel
from planner.planning.complete.complete_search import ask
from planner.verify import verify
from solver_models.complete.with_cp_sat import solve_with_cp_sat
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.solver_models.complete.test_complete_model import KINDS, problem_of, two_stages_on_a_device


@pytest.mark.parametrize("kind", KINDS)
def test_cp_sat_agrees_with_brute_force(kind: str):
    """Tests that the optimum of the model, from no plan at all, is that of brute force, and a plan of that length."""
    for seed in range(1000, 1000 + shortened(12, whole=200)):
        problem = problem_of(kind, seed)
        question = ask(problem, CostModel(problem))
        outcome = solve_with_cp_sat(question.model.programme, time_limit_s=60, seed=0, threads=1)
        best = brute_force(problem)
        if best is None:
            assert outcome.status == "infeasible", f"seed {seed}"
            continue
        assert (outcome.status, outcome.bound) == ("optimal", best), f"seed {seed}"
        assert outcome.values is not None
        verdict = verify(problem, question.plan(outcome.values))
        assert verdict.passed, f"seed {seed}: {verdict.violations}"
        assert verdict.timeline is not None
        assert verdict.timeline.makespan_ns == best, f"seed {seed}"


def test_given_stages_have_receive_buffers_on_every_device():
    """Tests that the model counts what d0 receives for its last stage, which no stage on d0 sends."""
    for memory, status in ((59, "infeasible"), (60, "optimal")):
        problem = two_stages_on_a_device(memory=memory)
        outcome = solve_with_cp_sat(
            ask(problem, CostModel(problem)).model.programme, time_limit_s=60, seed=0, threads=1
        )
        assert outcome.status == status
