"""The best order of actions for a fixed partition and mapping, and a bound on it, as CP-SAT claims them."""

import time
from dataclasses import dataclass, replace
from importlib.metadata import version

from ortools.sat.python import cp_model

from solver_models.instance import DeviceOrder, ScheduleInstance
from solver_models.result import ScheduleResult, Status
from solver_models.schedule.constraints import Rules
from solver_models.schedule.decode import decode
from solver_models.schedule.effort import BRANCHING, STATUS, SolveEffort, run_model
from solver_models.schedule.evaluation import fits, in_order, play
from solver_models.schedule.scale import Scaled, horizon_of, scaled
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.variables import Variables, queued_transfers

SOLVER = f"CP-SAT {version('ortools')}"

MAX_SIZE = 6_000
"""Largest model that is built, in actions and queued transfers; beyond about 500 the compiled search is better."""

_PROVE = f"""{BRANCHING} subsolvers: "lower"
subsolver_params {{ name: "lower" linearization_level: 0 use_objective_lb_search: true {BRANCHING} }}"""
"""Raises the bound, where the usual style finds better orders near a hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrderModel:
    """A built model."""

    scaled: Scaled
    """The problem in ticks of the solver."""
    model: cp_model.CpModel
    variables: Variables
    beyond: int | None
    """What every schedule takes if the model is infeasible: one tick more than its upper bound."""


def estimate_size(instance: ScheduleInstance) -> int:
    """Actions and queued transfers of the order model."""
    kinds = sum(3 if replica.has_weight_grad and instance.can_split else 2 for replica in instance.replicas)
    return instance.num_microbatches * (kinds + len(queued_transfers(instance)))


def make_model(
    instance: ScheduleInstance, *, hint: dict[int, DeviceOrder] | None = None, upper_bound: int | None = None
) -> _OrderModel:
    """The order model without schedules above `upper_bound`; every variable is hinted, by `hint` if that plays."""
    coarse = scaled(instance)
    limit = None if upper_bound is None else upper_bound // coarse.ticks
    horizon = horizon_of(coarse.instance)
    if limit is not None and instance.objective == "makespan":
        horizon = max(0, min(horizon, limit))
    model = cp_model.CpModel()
    variables = Variables(model, coarse.instance, horizon=horizon)
    Rules(variables).add_all()
    if limit is not None:
        model.add(variables.objective <= limit)
    played = play(coarse.instance, in_order(hint or {})) or play(coarse.instance, one_by_one(coarse.instance))
    if played is not None:
        for variable, reader in variables.readers:
            model.add_hint(variable, reader(played))
    model.minimize(variables.objective)
    beyond = None if upper_bound is None else upper_bound + 1
    return _OrderModel(scaled=coarse, model=model, variables=variables, beyond=beyond)


def solve_order(
    instance: ScheduleInstance,
    *,
    hint: dict[int, DeviceOrder] | None = None,
    upper_bound: int | None = None,
    effort: SolveEffort = SolveEffort(),
) -> ScheduleResult:
    """The best order found with an effort, starting from `hint`; `infeasible` if none is at most `upper_bound`.

    Half of the limits go to better orders, half to a better bound. Links may take transfers in any order here, so the
    bound holds for the rule by readiness as well, and the device orders must be replayed. With one worker the same seed
    gives the same answer if only the deterministic limit stops it. Models above `MAX_SIZE` are refused as `unknown`.
    """
    if estimate_size(instance) > MAX_SIZE:
        return _no_answer("unknown")
    start, work = time.monotonic(), effort.deterministic_limit
    half = replace(effort, time_limit_s=effort.time_limit_s / 2, deterministic_limit=None if work is None else work / 2)
    order = make_model(instance, hint=hint, upper_bound=upper_bound)
    found = _run(order, half, style=BRANCHING)
    if found.status in ("optimal", "infeasible") or (effort.should_stop is not None and effort.should_stop()):
        return found
    rest = replace(half, time_limit_s=max(0.0, start + effort.time_limit_s - time.monotonic()))
    order = make_model(instance, hint=found.device_orders or hint, upper_bound=found.objective or upper_bound)
    if found.bound is not None:
        order.model.add(order.variables.objective >= found.bound // order.scaled.ticks)
    return _better(found, _run(order, rest, style=_PROVE))


def _run(order: _OrderModel, effort: SolveEffort, *, style: str) -> ScheduleResult:
    """Solve a model on a thread that can be stopped."""
    solver, status = run_model(order.model, effort, style=style)
    if status is None:
        return _no_answer("unknown")
    if status == cp_model.MODEL_INVALID:
        raise ValueError(
            f"CP-SAT refuses the order model ({order.model.validate()[:300]}); please report this question"
        )
    return _read(order, solver, status=STATUS.get(status, "unknown"))


def _read(order: _OrderModel, solver: cp_model.CpSolver, *, status: Status) -> ScheduleResult:
    """The answer in the instance's own ticks; what rounding has relaxed is not called optimal."""
    ticks, coarse = order.scaled.ticks, order.scaled.instance
    if status == "infeasible":
        return _no_answer(status, bound=order.beyond)
    bound = solver.response_proto.inner_objective_lower_bound * ticks
    if status == "unknown":
        return _no_answer(status, bound=bound if bound > 0 else None)
    device_orders = decode(coarse, order.variables, value=solver.value)
    if not fits(
        order.scaled.original, device_orders
    ):  # sizes were rounded, or an action that needs memory takes no time
        return _no_answer("unknown", bound=bound)
    played = play(coarse, device_orders)
    ends = [solver.value(order.variables.objective)] + ([] if played is None else [played.objective])
    return ScheduleResult(
        status=status if order.scaled.has_exact_times else "feasible",
        objective=min(ends) * ticks,  # an order that is not proved best may have been left with idle time
        bound=bound,
        device_orders=device_orders,
        solver=SOLVER,
    )


def _better(first: ScheduleResult, second: ScheduleResult) -> ScheduleResult:
    """The better incumbent and the better bound of two runs, the second limited to what the first found."""
    if first.device_orders is None and second.status == "infeasible":
        return second
    bounds = [result.bound for result in (first, second) if result.bound is not None]
    return replace(first if second.device_orders is None else second, bound=max(bounds, default=None))


def _no_answer(status: Status, *, bound: int | None = None) -> ScheduleResult:
    return ScheduleResult(status=status, objective=None, bound=bound, device_orders=None, solver=SOLVER)
