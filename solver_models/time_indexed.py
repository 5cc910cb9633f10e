"""Linear programmes over counts, as HiGHS solves them: multipliers that prove."""

from collections.abc import Callable, Sequence
from typing import Protocol

import highspy
import numpy as np

from solver_models.interruptible import run_stoppable

_SCALE, _LEAST = 1 << 32, 1 << 8
"""Multipliers are parts of one in so many; those that are next to nothing are left out."""
_GRACE_S = 1.0


class CountRow(Protocol):
    """The sum of coefficients times counts is at most `most`."""

    @property
    def terms(self) -> dict[int, int]:
        """Column to coefficient."""

    @property
    def most(self) -> int:
        """Upper limit of the sum, an integer."""

    @property
    def is_end(self) -> bool:
        """Whether it says that everything is done in the end."""


def find_multipliers(
    rows: Sequence[CountRow],
    shape: tuple[int, int],
    *,
    time_limit_s: float,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[float, list[tuple[int, int]]] | None:
    """By how much the ends of all rows are missed at the least, and the multipliers that show it; None: no time.

    `shape`: the number of columns, whose counts lie between 0 and the second number.
    """
    model = _model(rows, shape)
    model.col_cost_ = np.append(np.zeros(shape[0]), 1.0)
    solver = run_highs(model, time_limit_s=time_limit_s, should_stop=should_stop, solver_name="ipm")
    if solver is None or solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    duals = -np.array(solver.getSolution().row_dual)
    factors = np.rint(duals * _SCALE).astype(np.int64)
    chosen = np.flatnonzero(factors >= _LEAST)
    return solver.getInfo().objective_function_value, [(row, int(factors[row])) for row in chosen.tolist()]


def _model(rows: Sequence[CountRow], shape: tuple[int, int]) -> highspy.HighsLp:
    """The rows, with a last column for how much is missed in the ends."""
    (num_columns, most), model = shape, highspy.HighsLp()
    model.num_col_, model.num_row_ = num_columns + 1, len(rows)
    model.col_lower_ = np.zeros(num_columns + 1)
    model.col_upper_ = np.append(np.full(num_columns, float(most)), float(most))
    model.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
    model.row_upper_ = np.array([float(row.most) for row in rows])
    starts, columns, values = [0], list[int](), list[float]()
    for row in rows:
        columns += row.terms.keys()
        values += map(float, row.terms.values())
        if row.is_end:
            columns.append(num_columns)
            values.append(-1.0)
        starts.append(len(columns))
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.array(starts)
    model.a_matrix_.index_ = np.array(columns)
    model.a_matrix_.value_ = np.array(values)
    return model


def run_highs(
    model: highspy.HighsLp,
    *,
    time_limit_s: float,
    should_stop: Callable[[], bool] | None,
    solver_name: str = "choose",
    most_nodes: int | None = None,
) -> highspy.Highs | None:
    """The solver once it is done; None if it was stopped and did not end. Any multipliers will do, not only corners."""
    solver = highspy.Highs()
    solver.silent()
    solver.HandleUserInterrupt = True  # else it does not look at `cancelSolve`
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("solver", solver_name)
    solver.setOptionValue("run_crossover", "off")
    solver.setOptionValue("time_limit", max(0.01, time_limit_s))
    if most_nodes is not None:
        solver.setOptionValue("mip_max_nodes", most_nodes)
    solver.passModel(model)
    ended = run_stoppable(
        lambda: bool(solver.run() is not None),
        stop=solver.cancelSolve,
        should_stop=should_stop,
        deadline_s=time_limit_s + _GRACE_S,
    )
    return None if ended is None else solver
