"""The complete programme as an integer linear programme: conditions by the least big-M, disjoint tasks by pairs."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import highspy
import pulp

from solver_models.complete.programme import Programme, Row
from solver_models.complete.solver_answer import DEFAULT_SOLVER, SolverAnswer
from solver_models.interruptible import run_stoppable
from solver_models.result import Status

GRACE_S = 5.0
"""Seconds beyond its limit after which a solver is told to stop."""

_STATUS: Mapping[int, Status] = {
    pulp.LpSolutionOptimal: "optimal",
    pulp.LpSolutionIntegerFeasible: "feasible",
    pulp.LpSolutionInfeasible: "infeasible",
}


def linear(programme: Programme) -> Programme:
    """The same programme without conditions and resources, only rows; the variables keep their numbers."""
    pairs = Programme(variables=list(programme.variables), rows=list(programme.rows))
    for number, disjoint in enumerate(programme.disjoint):
        for (a, first), (b, second) in combinations(enumerate(disjoint.tasks), 2) if not disjoint.is_ordered else ():
            order, given = pairs.switch(f"sooner_{number}_{a}_{b}"), (first.present, second.present)
            pairs.precede(first.end, second.start, given=(*given, order))
            pairs.precede(second.end, first.start, given=(*given, ~order))
    found = Programme(variables=pairs.variables, objective=programme.objective)
    for row in pairs.rows:
        _add_without_conditions(found, row)
    return found


def _add_without_conditions(programme: Programme, row: Row) -> None:
    """The sides of a row, each relaxed by as much as it can be violated for every condition that fails."""
    least, most = programme.range_of(row)
    if row.low is not None and least < row.low:
        slack = row.low - least
        terms = [*row.terms, *((x, -slack) if x >= 0 else (~x, slack) for x in row.given)]
        programme.add(terms, low=row.low - slack * sum(x >= 0 for x in row.given))
    if row.high is not None and most > row.high:
        slack = most - row.high
        terms = [*row.terms, *((x, slack) if x >= 0 else (~x, -slack) for x in row.given)]
        programme.add(terms, high=row.high + slack * sum(x >= 0 for x in row.given))


def make_pulp_problem(rows: Programme) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """PuLP's problem of a programme without conditions, and its variables by number."""
    problem = pulp.LpProblem("pipeline", pulp.LpMinimize)
    variables = [
        problem.add_variable(each.name, lowBound=each.low, upBound=each.high, cat="Integer") for each in rows.variables
    ]
    problem += variables[rows.objective]
    for row in rows.rows:
        total = pulp.lpSum(coefficient * variables[variable] for variable, coefficient in row.terms)
        if row.low is not None:
            problem += total >= row.low
        if row.high is not None:
            problem += total <= row.high
    return problem, variables


def available_solvers() -> list[str]:
    """PuLP's names of the solvers that can be used here."""
    return [str(name) for name in pulp.listSolvers(onlyAvailable=True)]


def require_solver(name: str) -> None:
    """Raise ValueError, with the names that can be used, if PuLP cannot find a solver."""
    if name not in available_solvers():
        raise ValueError(f"solver {name!r} is not available here; choose one of {', '.join(available_solvers())}")


def solve_with_pulp(
    rows: Programme,
    *,
    solver: str = DEFAULT_SOLVER,
    hint: Sequence[int] | None,
    time_limit_s: float,
    threads: int,
    should_stop: Callable[[], bool] | None = None,
) -> SolverAnswer:
    """What an integer programming solver finds and claims within the limit for a programme without conditions.

    `hint`: values of all variables to start from, where the solver takes any.
    Raises ValueError, with the names that can be used, if PuLP cannot find `solver`.
    """
    require_solver(solver)
    until = time.monotonic() + time_limit_s
    problem, variables = make_pulp_problem(rows)
    left_s = max(0.1, until - time.monotonic())
    engine = pulp.getSolver(solver, msg=False, timeLimit=left_s, threads=threads, gapRel=0.0)
    run = _run_highs if solver == DEFAULT_SOLVER else _run_any
    ended = run_stoppable(
        lambda: run(engine, problem, variables=variables, hint=hint, until=until),
        stop=lambda: None,
        should_stop=should_stop,
        deadline_s=left_s + GRACE_S,
    )
    if ended is None:
        return SolverAnswer(status="unknown", bound=None, values=None, solver=solver)
    status, bound = ended
    if status not in ("optimal", "feasible"):
        return SolverAnswer(status=status, bound=bound, values=None, solver=solver)
    values = [round(variable.value() or 0) for variable in variables]
    return SolverAnswer(
        status=status, bound=values[rows.objective] if status == "optimal" else bound, values=values, solver=solver
    )


def _run_any(
    engine: Any,
    problem: pulp.LpProblem,
    *,
    variables: Sequence[pulp.LpVariable],
    hint: Sequence[int] | None,
    until: float,
) -> tuple[Status, int | None]:
    del until
    for variable, value in zip(variables, hint or (), strict=False):
        variable.setInitialValue(value, check=False)
    engine.optionsDict["warmStart"] = hint is not None
    problem.solve(engine)
    return _STATUS.get(problem.sol_status, "unknown"), None


def _run_highs(
    engine: Any,
    problem: pulp.LpProblem,
    *,
    variables: Sequence[pulp.LpVariable],
    hint: Sequence[int] | None,
    until: float,
) -> tuple[Status, int | None]:
    """As PuLP runs it, with a solution to start from, which PuLP does not pass on, and the bound at the end."""
    engine.createAndConfigureSolver(problem)
    engine.buildSolverModel(problem)
    if hint is not None:
        start = highspy.HighsSolution()
        values = {variable.name: value for variable, value in zip(variables, hint, strict=True)}
        start.col_value = [float(values[variable.name]) for variable in problem.variables()]
        problem.solverModel.setSolution(start)
    problem.solverModel.setOptionValue("time_limit", max(0.1, until - time.monotonic()))
    engine.callSolver(problem)
    _, solution = engine.findSolutionValues(problem)
    info = problem.solverModel.getInfo()
    bound = info.mip_dual_bound
    return _STATUS.get(solution, "unknown"), int(bound) if 0 < bound < highspy.kHighsInf else None


def write_linear(rows: Programme, path: Path, *, as_mps: bool) -> None:
    """Write a programme without conditions as MPS or LP file."""
    problem, _ = make_pulp_problem(rows)
    if as_mps:
        problem.writeMPS(str(path))
    else:
        problem.writeLP(str(path), max_length=255)
