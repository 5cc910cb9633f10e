"""The complete programme as an integer linear programme: tests of solver_models/complete/with_pulp.py."""

import pytest

from planner.layout.costs import CostModel
from planner.planning.complete.complete_search import ask
from planner.progress import Limits
from planner.simulation.simulate import simulate
from solver_models.complete.with_cp_sat import solve_with_cp_sat
from solver_models.complete.with_pulp import linear, solve_with_pulp
from tests.planner.hasty import make_plan
from tests.solver_models.complete.test_complete_model import open_problem


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_the_incumbent_is_a_solution_to_start_from(method: str):
    """Tests that the best plan, completed to values of all variables, is feasible at exactly its makespan."""
    problem = open_problem()
    plan = make_plan(problem, limits=Limits(time_limit_s=60))
    costs, makespan_ns = CostModel(problem), simulate(problem, plan).makespan_ns
    question = ask(problem, costs, horizon=makespan_ns)
    programme = question.model.programme if method == "cp-sat" else linear(question.model.programme)
    fixed = programme.fixed(question.decisions(plan, costs))
    outcome = solve_with_cp_sat(fixed, time_limit_s=60, seed=0, threads=1)
    assert (outcome.status, outcome.bound) == ("optimal", makespan_ns)


def test_a_hint_survives_a_limit_that_is_too_short():
    """Tests that HiGHS hands back at least the solution that it starts from."""
    problem = open_problem()
    plan, costs = make_plan(problem, limits=Limits(time_limit_s=60)), CostModel(problem)
    question = ask(problem, costs, horizon=2 * simulate(problem, plan).makespan_ns, is_coarse=True)
    rows = linear(question.model.programme)
    start = solve_with_cp_sat(rows.fixed(question.decisions(plan, costs)), time_limit_s=60, seed=0, threads=1)
    outcome = solve_with_pulp(rows, hint=start.values, time_limit_s=0.2, threads=1)
    assert outcome.values is not None
    assert outcome.values[rows.objective] <= simulate(problem, plan).makespan_ns
