"""The complete programme for CP-SAT: rows with conditions and intervals as they are."""

from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

from solver_models.complete.programme import Literal, Programme, Row
from solver_models.complete.solver_answer import SolverAnswer
from solver_models.interruptible import run_stoppable
from solver_models.schedule.effort import STATUS

NAME = f"CP-SAT {version('ortools')}"
"""Who is said to claim what it answers."""

GRACE_S = 5.0
"""Seconds beyond its limit after which the solver is told to stop."""


def _make_cp_model(programme: Programme, *, hint: Sequence[int] | None = None) -> cp_model.CpModel:
    """The model; the variables are numbered as in the programme, those that belong to intervals alone come behind."""
    model = cp_model.CpModel()
    variables = [model.new_int_var(each.low, each.high, each.name) for each in programme.variables]

    def literal(number: Literal) -> Any:
        return variables[number] if number >= 0 else variables[~number].negated()

    for row in programme.rows:
        _add_row(model, variables, row=row, given=[literal(each) for each in row.given])
    for disjoint in programme.disjoint:
        intervals = [
            model.new_optional_interval_var(
                variables[task.start], variables[task.length], variables[task.end], literal(task.present), f"task_{n}"
            )
            for n, task in enumerate(disjoint.tasks)
        ]
        model.add_no_overlap(intervals)
    for variable, value in zip(variables, hint or (), strict=False):
        model.add_hint(variable, value)
    model.minimize(variables[programme.objective])
    return model


def _add_row(model: cp_model.CpModel, variables: Sequence[cp_model.IntVar], *, row: Row, given: list[object]) -> None:
    total = cp_model.LinearExpr.weighted_sum([variables[v] for v, _ in row.terms], [c for _, c in row.terms])
    low = cp_model.INT_MIN if row.low is None else row.low
    high = cp_model.INT_MAX if row.high is None else row.high
    added = model.add_linear_constraint(total, low, high)
    if given:
        added.only_enforce_if(given)


def solve_with_cp_sat(
    programme: Programme,
    *,
    time_limit_s: float,
    seed: int,
    threads: int,
    hint: Sequence[int] | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_values: Callable[[list[int]], None] | None = None,
) -> SolverAnswer:
    """What CP-SAT finds and claims within the limit.

    `on_values` hears, on the caller's thread, of every solution on the way.
    """
    model, solver = _make_cp_model(programme, hint=hint), cp_model.CpSolver()
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = time_limit_s
    callback = _SolutionCallback(model, len(programme.variables))

    def is_enough() -> bool:
        while callback.found and on_values is not None:
            on_values(callback.found.popleft())
        return should_stop is not None and should_stop()

    status = run_stoppable(
        lambda: solver.solve(model, callback),
        stop=solver.stop_search,
        should_stop=is_enough,
        deadline_s=time_limit_s + GRACE_S,
    )
    if status is None:
        return SolverAnswer(status="unknown", bound=None, values=None, solver=NAME)
    if status == cp_model.MODEL_INVALID:
        raise ValueError(f"CP-SAT refuses the complete model ({model.validate()[:300]}); please report this question")
    answer = STATUS.get(status, "unknown")
    bound = int(solver.response_proto.inner_objective_lower_bound) if answer != "infeasible" else None
    values = [solver.value(variable) for variable in callback.variables] if answer in ("optimal", "feasible") else None
    return SolverAnswer(status=answer, bound=bound, values=values, solver=NAME)


class _SolutionCallback(cp_model.CpSolverSolutionCallback):
    """Passes each better solution of CP-SAT on, and stops the solver when asked to."""

    def __init__(self, model: cp_model.CpModel, count: int) -> None:
        super().__init__()
        self.variables = [model.get_int_var_from_proto_index(number) for number in range(count)]
        self.found: deque[list[int]] = deque()

    def on_solution_callback(self) -> None:
        """Keep the values."""
        self.found.append([self.value(variable) for variable in self.variables])


def write_cp_model(programme: Programme, path: Path) -> None:
    """Write the model as CP-SAT's own text form."""
    path.write_text(str(_make_cp_model(programme).proto), encoding="utf-8")
