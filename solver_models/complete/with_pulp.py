"""The complete programme as an integer linear programme: conditions by the least big-M, disjoint tasks by pairs."""

import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pulp

from solver_models.complete.programme import Programme, Row
from solver_models.complete.solver_answer import DEFAULT_SOLVER, SolverAnswer
from solver_models.interruptible import run_stoppable
from solver_models.pulp_solvers import least_whole, solve_checked

_ROWS_PER_LOOK = 512
"""Rows between two looks at the clock."""

GRACE_S = 5.0
"""Seconds beyond its limit after which a solver is told to stop."""


def linear(programme: Programme, *, has_time: Callable[[], bool] = lambda: True) -> Programme | None:
    """The same programme without conditions and resources, only rows; the variables keep their numbers.

    None if there is no time for it: tasks of a device are taken two by two.
    """
    pairs = Programme(variables=list(programme.variables), rows=list(programme.rows))
    for number, disjoint in enumerate(programme.disjoint):
        for (a, first), (b, second) in combinations(enumerate(disjoint.tasks), 2) if not disjoint.is_ordered else ():
            if not b % _ROWS_PER_LOOK and not has_time():
                return None
            order, given = pairs.switch(f"sooner_{number}_{a}_{b}"), (first.present, second.present)
            pairs.precede(first.end, second.start, given=(*given, order))
            pairs.precede(second.end, first.start, given=(*given, ~order))
    found = Programme(variables=pairs.variables, objective=programme.objective)
    for place, row in enumerate(pairs.rows):
        if not place % _ROWS_PER_LOOK and not has_time():
            return None
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


def _make_pulp_problem(
    rows: Programme, *, has_time: Callable[[], bool] = lambda: True
) -> tuple[pulp.LpProblem, list[pulp.LpVariable]] | None:
    """PuLP's problem of a programme without conditions, and its variables by number; None if there is no time."""
    problem = pulp.LpProblem("pipeline", pulp.LpMinimize)
    variables = [
        problem.add_variable(each.name, lowBound=each.low, upBound=each.high, cat="Integer") for each in rows.variables
    ]
    problem += variables[rows.objective]
    for place, row in enumerate(rows.rows):
        if not place % _ROWS_PER_LOOK and not has_time():
            return None
        total = pulp.lpSum(coefficient * variables[variable] for variable, coefficient in row.terms)
        if row.low is not None:
            problem += total >= row.low
        if row.high is not None:
            problem += total <= row.high
    return problem, variables


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

    `hint`: values of all variables to start from, where the solver takes any. Raises SolverFailedError where the solver
    ends without an answer, or with one that a row or `hint` contradicts.
    """
    until = time.monotonic() + time_limit_s
    made = _make_pulp_problem(rows, has_time=lambda: time.monotonic() < until)
    if made is None:
        values = None if hint is None else list(hint)
        return SolverAnswer(status="unknown" if hint is None else "feasible", bound=None, values=values, solver=solver)
    problem, variables = made
    names = [variable.name for variable in variables]
    start = None if hint is None else dict(zip(names, hint, strict=True))
    left_s = max(0.1, until - time.monotonic())
    answer = run_stoppable(
        lambda: solve_checked(problem, solver=solver, time_limit_s=left_s, threads=threads, hint=start),
        stop=lambda: None,
        should_stop=should_stop,
        deadline_s=left_s + GRACE_S,
    )
    if answer is None:
        return SolverAnswer(status="unknown", bound=None, values=None, solver=solver)
    values = None
    if answer.values is not None:  # PuLP leaves out variables that no row mentions
        values = [round(answer.values.get(each.name, each.low)) for each in rows.variables]
    return SolverAnswer(status=answer.status, bound=least_whole(answer.bound), values=values, solver=solver)


def write_linear(rows: Programme, path: Path, *, as_mps: bool) -> None:
    """Write a programme without conditions as MPS or LP file."""
    made = _make_pulp_problem(rows)
    assert made is not None
    problem, _ = made
    if as_mps:
        problem.writeMPS(str(path))
    else:
        problem.writeLP(str(path), max_length=255)
