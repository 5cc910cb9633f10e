"""The order that fits in memory if any does: tests of solver_models/schedule/serial_schedule.py."""

from solver_models.instance import (
    INPUT_GRAD,
)
from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import best_of, chain
from tests.solver_models.schedule.test_tails import TINY, UNEVEN


def test_impossible_hint_is_ignored():
    """Tests that a hint that deadlocks or lacks actions does no harm."""
    problem = TINY["even"]
    for hint in ({0: [], 1: []}, {0: [(INPUT_GRAD, 0, 0)], 1: []}):
        assert solve_order(problem, hint=hint).objective == best_of(problem)


def test_nothing_fits():
    """Tests that a stage that cannot hold one microbatch makes the model infeasible, without a bound."""
    result = solve_order(chain(UNEVEN, budget=0))
    assert (result.status, result.objective, result.bound) == ("infeasible", None, None)
