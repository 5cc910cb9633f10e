"""Solvers that PuLP runs: what each of them takes, and what of its answer holds, which is a point and a bound.

PuLP's status is not enough. HiGHS at its time limit has status `Optimal`, GLPK there has solution status `Optimal` as
well, and a solver that is `Not Solved` or `Undefined` has solution status `Infeasible`. A point counts if it satisfies
every row. A bound counts if the solver states one, or has closed the gap before its limit.
"""

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import Any

import highspy
import pulp
from highspy import HighsModelStatus

from solver_models.complete.solver_answer import DEFAULT_SOLVER
from solver_models.result import SolverFailedError, Status

_TELL_OPTIMUM = frozenset({"COIN_CMD", "CPLEX_CMD", "GUROBI", "HiGHS_CMD", "PULP_CBC_CMD", "SCIP_PY"})
"""Solvers of which PuLP tells an optimum from a point at a limit; of others, as GLPK and SCIP_CMD, it does not."""

UNREADABLE = (
    pulp.PulpSolverError, AssertionError, LookupError, OSError, SubprocessError, TypeError, ValueError
)  # fmt: skip
"""What PuLP raises where a program crashes, or writes what PuLP does not expect."""

TOLERANCE = 1e-6
"""What a row may be missed by, relative to its largest term, where variables are not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAnswer:
    """A solver's answer after its point and bound were checked."""

    status: Status
    """`optimal` and `infeasible` are claims of the solver, not made at a limit."""
    values: Mapping[str, float] | None
    """A point that satisfies every row, by the names of the variables; whole where they are."""
    bound: float | None
    """The solver claims that no point has a smaller objective."""


def available_solvers() -> list[str]:
    """PuLP's names of the solvers that can be used here, the default first."""
    found = [str(name) for name in pulp.listSolvers(onlyAvailable=True) if "timeLimit" in _parameters(str(name))]
    return sorted(dict.fromkeys(found), key=lambda name: name != DEFAULT_SOLVER)


def require_solver(name: str) -> None:
    """Raise ValueError, with the names that can be used, if a solver is not installed or cannot be given a limit."""
    usable = available_solvers()
    if name in usable:
        return
    is_installed = name in pulp.listSolvers(onlyAvailable=True)
    reason = "takes no time limit from PuLP" if is_installed else "is not available here"
    raise ValueError(f"solver {name!r} {reason}; choose one of {', '.join(usable)}")


def solve_checked(
    problem: pulp.LpProblem,
    *,
    solver: str = DEFAULT_SOLVER,
    time_limit_s: float,
    threads: int = 1,
    hint: Mapping[str, int] | None = None,
) -> CheckedAnswer:
    """What holds of the answer to a problem that minimises, from `hint` on where the solver takes a start.

    Raises SolverFailedError, with what happened, if the solver ends without an answer or one that its own rows, or
    `hint`, contradict.
    """
    settings: dict[str, Any] = {"threads": threads, "gapRel": 0.0, "gapAbs": 0.0, "warmStart": hint is not None}
    if solver == DEFAULT_SOLVER:
        del settings["warmStart"]
        answer = _run_highs(problem, time_limit_s=time_limit_s, settings=settings, hint=hint)
    else:
        answer = _run_any(problem, solver=solver, time_limit_s=time_limit_s, settings=settings, hint=hint)
    return checked(problem, answer, solver=solver, hint=hint)


def least_whole(bound: float | None) -> int | None:
    """The least whole objective that a claimed bound leaves, once the bound is lowered by a relative tolerance."""
    return None if bound is None else math.ceil(bound - TOLERANCE * max(1.0, abs(bound)))


def _parameters(solver: str) -> Sequence[str]:
    """The names of what PuLP passes on to a solver."""
    return list(inspect.signature(getattr(pulp, solver).__init__).parameters)


def _run_highs(
    problem: pulp.LpProblem, *, time_limit_s: float, settings: Mapping[str, Any], hint: Mapping[str, int] | None
) -> CheckedAnswer:
    """HiGHS as PuLP builds it; PuLP passes on no start, reads no bound, and knows not all of its statuses."""
    begin = time.monotonic()
    engine = pulp.HiGHS(msg=False, timeLimit=time_limit_s, **settings)
    engine.createAndConfigureSolver(problem)
    engine.buildSolverModel(problem)
    model, variables = problem.solverModel, problem.variables()
    if hint is not None and _broken_row(problem, hint) is None:  # HiGHS hands back any start, at its limit
        start = highspy.HighsSolution()
        start.col_value = [float(hint[variable.name]) for variable in variables]
        model.setSolution(start)
    model.setOptionValue("time_limit", max(0.1, time_limit_s - (time.monotonic() - begin)))
    engine.callSolver(problem)
    outcome, info = model.getModelStatus(), model.getInfo()
    if outcome in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
        return CheckedAnswer(status="infeasible", values=None, bound=None)
    bound = float(info.mip_dual_bound)
    has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = dict(zip((each.name for each in variables), model.getSolution().col_value, strict=True))
    status: Status = "optimal" if outcome == HighsModelStatus.kOptimal else "feasible" if has_point else "unknown"
    return CheckedAnswer(
        status=status, values=values if has_point else None, bound=bound if abs(bound) < highspy.kHighsInf else None
    )


def _run_any(
    problem: pulp.LpProblem,
    *,
    solver: str,
    time_limit_s: float,
    settings: Mapping[str, Any],
    hint: Mapping[str, int] | None,
) -> CheckedAnswer:
    """Any other solver, with as many of the settings as PuLP passes on to it."""
    taken, limit_s = _parameters(solver), max(1, math.floor(time_limit_s))  # glpsol reads whole seconds only
    given = {name: value for name, value in settings.items() if name in taken}
    if hint is not None:
        for variable in problem.variables():
            variable.setInitialValue(hint[variable.name], check=False)
    begin = time.monotonic()
    with TemporaryDirectory() as folder:
        engine = pulp.getSolver(solver, msg=False, timeLimit=limit_s, **given)
        engine.tmpDir = folder
        fault = _fault_of(engine, problem)
    if fault is not None:
        raise SolverFailedError(
            f"solver {solver} ended without a readable answer: it crashed, was killed or ran out of memory (PuLP: "
            f"{fault}); choose another --solver"
        )
    is_at_limit = time.monotonic() - begin >= limit_s
    said = problem.status, problem.sol_status
    if said == (pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible):
        return CheckedAnswer(status="unknown" if is_at_limit else "infeasible", values=None, bound=None)
    if any(variable.value() is None for variable in problem.variables()):
        return CheckedAnswer(status="unknown", values=None, bound=None)
    values = {variable.name: float(variable.value()) for variable in problem.variables()}
    if is_at_limit or said != (pulp.LpStatusOptimal, pulp.LpSolutionOptimal):
        return CheckedAnswer(status="feasible", values=values, bound=None)
    bound = float(pulp.value(problem.objective)) - (settings["gapAbs"] if "gapAbs" in taken else 0.0)
    return CheckedAnswer(status="optimal", values=values, bound=bound if solver in _TELL_OPTIMUM else None)


def _fault_of(engine: Any, problem: pulp.LpProblem) -> str | None:
    """Let a solver work; returns what PuLP says where it has not ended as it should."""
    try:
        problem.solve(engine)
    except UNREADABLE as error:
        return str(error).strip() or type(error).__name__
    return None


def checked(
    problem: pulp.LpProblem, answer: CheckedAnswer, *, solver: str, hint: Mapping[str, int] | None
) -> CheckedAnswer:
    """The answer without a point that breaks a row; raises SolverFailedError where a claim is contradicted."""
    values = None if answer.values is None else _whole(problem, answer.values)
    fault = None if values is None else _broken_row(problem, values)
    start = hint if hint is not None and _broken_row(problem, hint) is None else None
    if answer.status == "infeasible" and start is not None:
        raise SolverFailedError(
            f"solver {solver} calls a problem infeasible although it was given a solution; choose another --solver"
        )
    if answer.status == "optimal" and fault is not None:
        raise SolverFailedError(
            f"solver {solver} calls a solution optimal that breaks {fault}; choose another --solver"
        )
    if fault is not None:
        return CheckedAnswer(status="unknown", values=None, bound=answer.bound)
    if answer.bound is not None and start is not None:
        known = _total(problem.objective, start)
        if answer.bound > known + TOLERANCE * max(1.0, abs(known)):
            raise SolverFailedError(
                f"solver {solver} claims that nothing is below {answer.bound:g}, but was given {known:g}; "
                "choose another --solver"
            )
    status = "feasible" if answer.status == "optimal" and answer.bound is None else answer.status
    return CheckedAnswer(status=status, values=values, bound=answer.bound)


def _whole(problem: pulp.LpProblem, values: Mapping[str, float]) -> dict[str, float]:
    """The values, rounded where variables are whole."""
    return {
        each.name: float(round(values[each.name])) if each.cat == pulp.LpInteger else values[each.name]
        for each in problem.variables()
    }


def _broken_row(problem: pulp.LpProblem, values: Mapping[str, float]) -> str | None:
    """The first row or limit of a variable that a point breaks, and by how much; None if there is none."""
    for variable in problem.variables():
        value, low, high = values[variable.name], variable.lowBound, variable.upBound
        missing = max(0.0 if low is None else low - value, 0.0 if high is None else value - high)
        if missing > TOLERANCE * max(1.0, abs(value)):
            return f"the limits of variable {variable.name} by {missing:g}"
    for row in problem.constraints():
        total = _total(row, values)
        missing = abs(total) if row.sense == pulp.LpConstraintEQ else max(0.0, -row.sense * total)
        if missing and missing > _slack(row, values):
            return f"row {row.name} by {missing:g}"
    return None


def _total(expression: pulp.LpAffineExpression, values: Mapping[str, float]) -> float:
    """An expression's value at a point."""
    terms = (coefficient * values[variable.name] for variable, coefficient in expression.items())
    return float(sum(terms, start=float(expression.constant)))


def _slack(row: pulp.LpConstraint, values: Mapping[str, float]) -> float:
    """What a row may be missed by: less than a unit where everything in it is whole."""
    if all(variable.cat == pulp.LpInteger and float(each).is_integer() for variable, each in row.items()):
        return 0.5
    return TOLERANCE * float(max([1.0, *(abs(each * values[variable.name]) for variable, each in row.items())]))
