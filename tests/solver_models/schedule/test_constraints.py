"""The rules of the order model: tests of solver_models/schedule/constraints.py."""

import pytest
from ortools.sat.python import cp_model

from planner.lowering import make_schedule_instance
from solver_models.instance import (
    ScheduleInstance,
)
from solver_models.schedule.constraints import Rules
from solver_models.schedule.solve import make_model, solve_order
from tests.solver_models.exact_order.test_link_queues import served_second
from tests.solver_models.schedule.test_solve import QUEUED, chain
from tests.solver_models.schedule.test_tails import TINY

DIAMOND = served_second()

WITHOUT: dict[str, ScheduleInstance] = {
    "microbatches_come_in_order": QUEUED["slow link"],
    "backward_follows_forward": chain([(2, 2, 2), (2, 2, 2)], microbatches=1),
    "weight_grad_follows_input_grad": TINY["tight"],
    "device_runs_one_action_at_a_time": TINY["even"],
    "transfer_follows_its_sender": QUEUED["slow link"],
    "receiver_waits_for_arrival": TINY["uneven"],
    "link_carries_one_transfer_at_a_time": QUEUED["one link for all"],
    "sends_of_an_action_keep_their_order": make_schedule_instance(DIAMOND.problem, DIAMOND.stages, costs=DIAMOND.costs),
    "memory_stays_within_budget": TINY["tight"],
    "objective_covers_every_replica": TINY["synchronisation"],
}
"""For every rule, an instance whose optimum would be lower without it."""


@pytest.mark.parametrize("rule", WITHOUT)
def test_every_rule_binds(rule: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that the optimum is lower once a rule is left out (and with it the floor that the rules imply)."""
    monkeypatch.setattr(Rules, "device_needs_its_work", lambda self: None)
    complete = solve_order(WITHOUT[rule]).objective
    monkeypatch.setattr(Rules, rule, lambda self: None)
    relaxed = solve_order(WITHOUT[rule]).bound
    assert complete is not None
    assert relaxed is not None
    assert relaxed < complete


def test_every_rule_is_tested():
    """Tests that every rule but the implied one stands in the table above."""
    assert set(Rules.NAMES) - {"device_needs_its_work"} == set(WITHOUT)


def test_work_of_a_device_is_a_floor_at_once(monkeypatch: pytest.MonkeyPatch):
    """Tests that the bound is at least fill + work before any search, and lower without that rule."""
    problem = chain([(3, 4, 2), (5, 2, 6), (4, 4, 4)], microbatches=8)
    floors = []
    for _ in range(2):
        solver = cp_model.CpSolver()
        solver.parameters.cp_model_presolve = False
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 1e-9
        solver.solve(make_model(problem).model)
        floors.append(solver.response_proto.inner_objective_lower_bound)
        monkeypatch.setattr(Rules, "device_needs_its_work", lambda self: None)
    assert floors[0] >= 3 + 8 * 13 > floors[1]
