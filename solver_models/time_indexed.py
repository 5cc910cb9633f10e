"""Linear programmes over counts, as HiGHS solves them: multipliers that prove."""

from collections.abc import Callable, Sequence
from typing import Protocol

import highspy
import numpy as np

from solver_models.instance import Integers
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

    @property
    def owner(self) -> int:
        """Whose paths fulfil it in any case; -1 for none."""


class GraphMove(Protocol):
    """Starts of one kind: from which states to which, after so many cells."""

    @property
    def kind(self) -> int:
        """Number of its columns."""

    @property
    def cells(self) -> int:
        """Between its start and its end."""

    @property
    def source(self) -> Integers:
        """States before it."""

    @property
    def target(self) -> Integers:
        """States after it, in the same order."""


class StateGraph(Protocol):
    """Moves between states, of which the first is that of the start and of the end."""

    @property
    def num_states(self) -> int:
        """Numbered from 0."""

    @property
    def moves(self) -> Sequence[GraphMove]:
        """Beside waiting for a cell."""


class Paths(Protocol):
    """Counts that are those of a path each."""

    @property
    def graph(self) -> StateGraph:
        """Of one cell to the next."""

    @property
    def columns(self) -> Sequence[range]:
        """Counts of each kind of moves, one per cell."""

    @property
    def owner(self) -> int:
        """Number of rows that it fulfils in any case."""

    @property
    def windows(self) -> Sequence[tuple[int, int]]:
        """The first and the last cell at which each kind of moves may start."""


def find_multipliers(
    rows: Sequence[CountRow],
    shape: tuple[int, int],
    *,
    paths: Sequence[Paths] = (),
    time_limit_s: float,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[float, list[tuple[int, int]]] | None:
    """By how much the ends of all rows are missed at the least, and the multipliers that show it; None: no time.

    `shape`: the number of columns, whose counts lie between 0 and the second number; those of `paths` are averages of
    paths.
    """
    owners = {own.owner for own in paths}
    numbers = [number for number, row in enumerate(rows) if row.owner not in owners]
    model = _model([rows[number] for number in numbers], shape)
    model.col_cost_ = np.append(np.zeros(shape[0]), 1.0)
    for own in paths:
        _add_paths(model, own)
    solver = run_highs(model, time_limit_s=time_limit_s, should_stop=should_stop, solver_name="ipm")
    if solver is None or solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    duals = -np.array(solver.getSolution().row_dual)[: len(numbers)]
    factors = np.rint(duals * _SCALE).astype(np.int64)
    chosen = np.flatnonzero(factors >= _LEAST)
    return solver.getInfo().objective_function_value, [(numbers[row], int(factors[row])) for row in chosen]


def _add_paths(model: highspy.HighsLp, paths: Paths) -> None:
    """A unit flows from the first state to it; a move that begins by a cell counts from then on."""
    graph, cells = paths.graph, len(paths.columns[0]) - 1
    states, times = graph.num_states, np.arange(cells)
    stay = np.arange(states)
    waits = (times[:, None] * states + stay).ravel()
    tails, heads, counted = [waits], [waits + states], [np.full(len(waits), -1)]
    kinds = {move.kind: number for number, move in enumerate(graph.moves)}
    for move in graph.moves:
        first, last = paths.windows[move.kind]
        begins = np.arange(max(0, first), min(last, cells - move.cells) + 1)[:, None]
        tails.append((begins * states + move.source).ravel())
        heads.append(((begins + move.cells) * states + move.target).ravel())
        counted.append(np.repeat(kinds[move.kind] * (cells + 1) + begins.ravel(), len(move.source)))
    tail, head, count = (np.concatenate(each) for each in (tails, heads, counted))
    arcs = model.num_col_ + np.arange(len(tail))
    num_nodes = (cells + 1) * states
    is_start = count >= 0
    columns = np.array([list(paths.columns[move.kind]) for move in graph.moves]).ravel()
    later = np.flatnonzero(np.arange(len(columns)) % (cells + 1))
    row = np.concatenate(
        [tail, head, num_nodes + count[is_start], num_nodes + np.arange(len(columns)), num_nodes + later]
    )
    column = np.concatenate([arcs, arcs, arcs[is_start], columns, columns[later - 1]])
    value = np.repeat(
        [-1.0, 1.0, 1.0, -1.0, 1.0], [len(arcs), len(arcs), int(is_start.sum()), len(columns), len(later)]
    )
    order = np.argsort(row, kind="stable")
    lengths = np.bincount(row, minlength=num_nodes + len(columns))
    balance = np.zeros(num_nodes + len(columns))
    balance[0], balance[cells * states] = -1.0, 1.0
    matrix = model.a_matrix_
    begin = np.array(matrix.start_)
    matrix.start_ = np.append(begin, begin[-1] + np.cumsum(lengths))
    matrix.index_ = np.append(np.array(matrix.index_), column[order])
    matrix.value_ = np.append(np.array(matrix.value_), value[order])
    model.row_lower_ = np.append(np.array(model.row_lower_), balance)
    model.row_upper_ = np.append(np.array(model.row_upper_), balance)
    model.col_cost_ = np.append(np.array(model.col_cost_), np.zeros(len(arcs)))
    model.col_lower_ = np.append(np.array(model.col_lower_), np.zeros(len(arcs)))
    model.col_upper_ = np.append(np.array(model.col_upper_), np.ones(len(arcs)))
    model.num_row_, model.num_col_ = len(balance) + model.num_row_, len(arcs) + model.num_col_


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
