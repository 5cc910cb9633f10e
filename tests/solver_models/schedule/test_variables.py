"""What the order model decides: tests of solver_models/schedule/variables.py."""

import pytest
from ortools.sat.python import cp_model

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
)
from solver_models.schedule.solve import make_model, solve_order
from tests.solver_models.schedule.test_solve import best_of, end_of, memory_steps
from tests.solver_models.schedule.test_tails import TINY


def peak_units(problem: ScheduleInstance, device: int, word: DeviceOrder) -> int:
    """The largest number of units held on a device."""
    lanes, held, peak = {own.stage: own for own in problem.replicas if own.device == device}, 0, 0
    for kind, stage, _ in word:
        during, after = memory_steps(lanes[stage], kind)
        peak, held = max(peak, held + during), held + after
    return peak


@pytest.mark.parametrize("name", TINY)
def test_optimum_equals_enumeration(name: str):
    """Tests that the model's optimum is the least objective over all orders, and its words attain it and fit."""
    problem = TINY[name]
    best = best_of(problem)
    result = solve_order(problem)
    assert (result.status, result.objective, result.bound) == ("optimal", best, best)
    assert result.device_orders is not None
    assert end_of(problem, result.device_orders) == best
    assert all(peak_units(problem, d, word) <= problem.devices[d].memory for d, word in result.device_orders.items())


@pytest.mark.parametrize("mix", [0, 1, 2, 3])
def test_hint_may_mix_fused_and_split(mix: int):
    """Tests that hints in which some backward passes are fused are complete and feasible too."""
    problem = TINY["B or I and W, tight"]
    word = []
    for m in range(2):
        is_fused = bool(mix >> m & 1)
        word += [(FORWARD, 0, m), *([(BACKWARD, 0, m)] if is_fused else [(INPUT_GRAD, 0, m), (WEIGHT_GRAD, 0, m)])]
    hint = {0: word, 1: [(kind, 1, m) for kind, _, m in word]}
    order = make_model(problem, hint=hint)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(order.model) == cp_model.OPTIMAL
    assert solver.objective_value * order.scaled.ticks == end_of(problem, hint)
