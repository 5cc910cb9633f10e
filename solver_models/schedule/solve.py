"""The best order of actions for a fixed partition and mapping, and a bound on it, as CP-SAT claims them."""

from collections.abc import Callable
from dataclasses import dataclass

import ortools
from ortools.sat.python import cp_model

from solver_models.instance import ScheduleInstance, Word
from solver_models.result import ScheduleResult, Status
from solver_models.schedule.decode import decode
from solver_models.schedule.play import in_order, play
from solver_models.schedule.rules import Rules
from solver_models.schedule.scale import Scaled, horizon_of, scaled
from solver_models.schedule.variables import Variables, queued_flows
from solver_models.stoppable import run_stoppable

SOLVER = f"CP-SAT {ortools.__version__}"

MAX_SIZE = 6_000
"""Largest model that is built, in actions and queued transfers; beyond about 500 the compiled search is better anyway."""

_STATUS: dict[int, Status] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderModel:
    """A built model."""

    scaled: Scaled
    """What it is a model of."""
    model: cp_model.CpModel
    """The model itself."""
    variables: Variables
    """Its variables."""
    beyond: int | None
    """What every schedule takes if the model is infeasible: one tick more than its upper bound."""


def estimate_size(instance: ScheduleInstance) -> int:
    """Actions and queued transfers of the order model."""
    kinds = sum(3 if lane.has_weight_grad and instance.can_split else 2 for lane in instance.lanes)
    return instance.num_microbatches * (kinds + len(queued_flows(instance)))


def make_model(
    instance: ScheduleInstance, *, hint: dict[int, Word] | None = None, upper_bound: int | None = None
) -> OrderModel:
    """The order model; with a hint for every variable if `hint` can be played, and no schedule above `upper_bound`."""
    coarse = scaled(instance)
    limit = None if upper_bound is None else upper_bound // coarse.ticks
    horizon = horizon_of(coarse.instance)
    if limit is not None and instance.objective == "makespan":
        horizon = max(0, min(horizon, limit))
    model = cp_model.CpModel()
    variables = Variables(model, coarse.instance, horizon=horizon)
    Rules(model, coarse.instance, variables).add_all()
    if limit is not None:
        model.add(variables.objective <= limit)
    played = None if hint is None else play(coarse.instance, in_order(hint))
    if played is not None:
        for variable, reader in variables.readers:
            model.add_hint(variable, reader(played))
    model.minimize(variables.objective)
    beyond = None if upper_bound is None else upper_bound + 1
    return OrderModel(scaled=coarse, model=model, variables=variables, beyond=beyond)


def solve_order(
    instance: ScheduleInstance,
    *,
    hint: dict[int, Word] | None = None,
    upper_bound: int | None = None,
    time_limit_s: float = 10.0,
    deterministic_limit: float | None = None,
    seed: int = 0,
    num_workers: int = 1,
    should_stop: Callable[[], bool] | None = None,
) -> ScheduleResult:
    """The best order found within the limits, starting from `hint`; `infeasible` if none is at most `upper_bound`.

    Links may take transfers in any order here, so the bound holds for the rule by readiness as well, and the words must
    be replayed. The same seed gives the same answer with one worker if only `deterministic_limit` stops it.
    """
    if estimate_size(instance) > MAX_SIZE:
        return _no_answer("unknown")
    order = make_model(instance, hint=hint, upper_bound=upper_bound)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = num_workers
    if deterministic_limit is not None:
        solver.parameters.max_deterministic_time = deterministic_limit
    status = run_stoppable(
        lambda: solver.solve(order.model),
        stop=solver.stop_search,
        should_stop=should_stop,
        deadline_s=2 * time_limit_s + 1,
    )
    if status is None:
        return _no_answer("unknown")
    if status == cp_model.MODEL_INVALID:
        raise ValueError(f"CP-SAT refuses the order model: {order.model.validate()[:300]}")
    return _read(order, solver, status=_STATUS.get(status, "unknown"))


def _no_answer(status: Status, *, bound: int | None = None) -> ScheduleResult:
    return ScheduleResult(status=status, objective=None, bound=bound, words=None, solver=SOLVER)


def _read(order: OrderModel, solver: cp_model.CpSolver, *, status: Status) -> ScheduleResult:
    """The answer in the instance's own ticks; what rounding has relaxed is no longer called optimal."""
    ticks = order.scaled.ticks
    if status == "infeasible":
        return _no_answer(status, bound=order.beyond)
    bound = solver.response_proto.inner_objective_lower_bound * ticks
    if status == "unknown":
        return _no_answer(status, bound=bound if bound > 0 else None)
    return ScheduleResult(
        status=status if order.scaled.is_exact else "feasible",
        objective=solver.value(order.variables.objective) * ticks,
        bound=bound,
        words=decode(order.scaled.instance, order.variables, value=solver.value),
        solver=SOLVER,
    )
