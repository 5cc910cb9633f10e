"""The same instance in coarser ticks and units: tests of solver_models/schedule/scale.py."""

from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from solver_models.device_rows import DeviceRow
from solver_models.instance import (
    StageReplica,
)
from solver_models.schedule.evaluation import play
from solver_models.schedule.scale import scaled
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.solve import make_model, solve_order
from tests.solver_models.schedule.test_solve import QUEUED, best_of
from tests.solver_models.schedule.test_tails import TINY


@pytest.mark.parametrize("name", [*TINY, *QUEUED])
def test_hint_is_complete_and_feasible(name: str):
    """Tests that a hint gives every variable a value, and that these values alone are a solution."""
    problem = {**TINY, **QUEUED}[name]
    hint = one_by_one(problem)
    order = make_model(problem, hint=hint)
    proto = order.model.proto
    assert sorted(proto.solution_hint.vars) == list(range(len(proto.variables)))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(order.model) == cp_model.OPTIMAL
    assert solver.objective_value == play(scaled(problem).instance, hint).objective


@pytest.mark.parametrize("factor", [1000, 10**9 + 7, 2**31])
def test_scaling_is_exact(factor: int):
    """Tests that multiplying all times and all sizes changes nothing but the units."""
    problem = TINY["recomputation"]
    names = set(StageReplica.__slots__) - {"stage", "device", "has_weight_grad"}
    lanes = tuple(replace(own, **{name: factor * getattr(own, name) for name in names}) for own in problem.replicas)
    large = replace(
        problem,
        replicas=lanes,
        devices=tuple(DeviceRow(memory=factor * row.memory + factor - 1) for row in problem.devices),
    )
    assert scaled(large).instance == scaled(problem).instance
    assert scaled(large).has_exact_times
    assert solve_order(large).objective == factor * best_of(problem)
