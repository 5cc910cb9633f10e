"""Prices of rows at which the cheapest paths say most, by ascent: a bound's multipliers for thousands of cells.

What all paths cost at least is concave in the prices. Paths are drawn at a temperature, which makes it smooth, and the
prices follow how far the rows are missed by what is drawn, each at its own pace (Adam), while it cools.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Flags, Floats, Integers

_FAR = 1e30
"""Price of a state that no path reaches."""
_RARE = 1e-12
"""Shares of paths that are not followed any more."""
_SMALL = 30.0
"""Differences of prices, in temperatures, that do not count any more."""
_MEAN_DECAY, _SQUARE_DECAY, _LEAST_SQUARE = 0.9, 0.99, 1e-8
"""Of the means of a row's misses and of their squares."""
_EARLIEST, _LATEST = range(2)
"""Columns of windows."""


class PricedRows(NamedTuple):
    """R rows: the sum of values times counts is at most `most`."""

    start: Integers
    """[R + 1] where the terms of a row begin."""
    column: Integers
    value: Floats
    most: Floats
    is_end: Flags
    """[R] whether it says that everything is done in the end: their prices add up to their number."""


class PricedPaths(NamedTuple):
    """P graphs of states, of which the first of each is that of the start and of the end, and their arcs."""

    first: Integers
    """[P + 1] where the states of a graph begin."""
    arcs: Integers
    """[states + 1] where the arcs to a state begin."""
    kind: Integers
    """[arcs] of moves."""
    source: Integers
    """[arcs] state of the same graph, numbered from 0."""
    cells: Integers
    """[P, kinds] between the start of a move and its end."""
    owner: Integers
    """[P] number of the block of kinds whose columns count its starts."""
    windows: Integers
    """[P, kinds, 2] the first and the last cell at which a move may start."""


class PriceState(NamedTuple):
    """[R] prices, the means of misses, and those of their squares."""

    prices: Floats
    mean: Floats
    square: Floats


class PriceSteps(NamedTuple):
    """How far prices move in a step, and how warm it is, at the first of some steps and at the last."""

    first_move: float
    last_move: float
    first_temperature: float
    last_temperature: float


_COLD, WARM = PriceSteps(0.16, 0.004, 0.2, 0.01), PriceSteps(0.1, 0.004, 0.1, 0.005)
_POINTS = 64
"""Rows that say the same of different cells, for which paces are told."""
_STEPS, _IMPROVED = 10, 0.8
"""Between two looks at the time, and the share of what is left that steps may take: prices are to be told."""


@kernel
def _price_starts(rows: PricedRows, prices: Floats, cells: int, starts: Floats) -> None:
    """Prices of starts by column; a start counts from its cell to the last."""
    starts[:] = 0.0
    for r in range(len(prices)):
        if prices[r] != 0.0:
            for x in range(rows.start[r], rows.start[r + 1]):
                starts[rows.column[x]] += prices[r] * rows.value[x]
    for first in range(0, len(starts), cells + 1):
        for x in range(first + cells - 1, first - 1, -1):
            starts[x] += starts[x + 1]


@kernel
def _fill(paths: PricedPaths, p: int, starts: Floats, temperature: float, table: Floats) -> float:
    """What the paths of a graph cost: the cheapest where `temperature` is 0, else less by how many there are of them.

    `table` [cells + 1, states] is filled.
    """
    first, size = paths.first[p], paths.first[p + 1] - paths.first[p]
    span = table.shape[0]
    base = paths.owner[p] * paths.cells.shape[1]
    table[:, :size] = _FAR
    table[0, 0] = 0.0
    for t in range(1, span):
        for j in range(size):
            wait = table[t - 1, j]
            least = wait
            for x in range(paths.arcs[first + j], paths.arcs[first + j + 1]):
                k = paths.kind[x]
                begin = t - paths.cells[p, k]
                if paths.windows[p, k, _EARLIEST] <= begin <= paths.windows[p, k, _LATEST]:
                    least = min(least, table[begin, paths.source[x]] + starts[(base + k) * span + begin])
            table[t, j] = least
            if temperature == 0.0 or least > _FAR / 2:
                continue
            total = 0.0 if wait > least + _SMALL * temperature else np.exp((least - wait) / temperature)
            for x in range(paths.arcs[first + j], paths.arcs[first + j + 1]):
                k = paths.kind[x]
                begin = t - paths.cells[p, k]
                if paths.windows[p, k, _EARLIEST] <= begin <= paths.windows[p, k, _LATEST]:
                    more = table[begin, paths.source[x]] + starts[(base + k) * span + begin] - least
                    if more < _SMALL * temperature:
                        total += np.exp(-more / temperature)
            table[t, j] = least - temperature * np.log(total)
    return float(table[span - 1, 0])


@kernel
def _draw(
    paths: PricedPaths, p: int, starts: Floats, temperature: float, table: Floats, reached: Floats, drawn: Floats
) -> None:
    """Add to `drawn`, by column, how often the paths of a graph begin something, on average."""
    first, size = paths.first[p], paths.first[p + 1] - paths.first[p]
    span = table.shape[0]
    base = paths.owner[p] * paths.cells.shape[1]
    reached[:, :size] = 0.0
    reached[span - 1, 0] = 1.0
    for t in range(span - 1, 0, -1):
        for j in range(size):
            share, here = reached[t, j], table[t, j]
            if share < _RARE:
                continue
            more = table[t - 1, j] - here
            if more < _SMALL * temperature:
                reached[t - 1, j] += share * np.exp(-more / temperature)
            for x in range(paths.arcs[first + j], paths.arcs[first + j + 1]):
                k = paths.kind[x]
                begin = t - paths.cells[p, k]
                if not paths.windows[p, k, _EARLIEST] <= begin <= paths.windows[p, k, _LATEST]:
                    continue
                column = (base + k) * span + begin
                more = table[begin, paths.source[x]] + starts[column] - here
                if more < _SMALL * temperature:
                    part = share * np.exp(-more / temperature)
                    reached[begin, paths.source[x]] += part
                    drawn[column] += part


@kernel
def least_sum(rows: PricedRows, paths: PricedPaths, prices: Floats, shape: tuple[int, int]) -> float:
    """By how much the cheapest paths cost more than the rows allow: above 0, they contradict each other.

    `shape`: cells and columns.
    """
    cells, columns = shape
    starts = np.empty(columns)
    table = np.empty((cells + 1, np.diff(paths.first).max()))
    _price_starts(rows, prices, cells, starts)
    total = -np.sum(rows.most * prices)
    for p in range(len(paths.owner)):
        total += _fill(paths, p, starts, 0.0, table)
    return float(total)


@kernel
def improve_prices(
    rows: PricedRows,
    paths: PricedPaths,
    state: PriceState,
    shape: tuple[int, int],
    pace: PriceSteps,
    part: tuple[int, int, int],
) -> None:
    """Steps from `part[0]` to `part[1]` of `part[2]`, in place. `shape`: cells and columns."""
    cells, columns = shape
    starts, drawn = np.empty(columns), np.empty(columns)
    table = np.empty((cells + 1, np.diff(paths.first).max()))
    reached = np.empty_like(table)
    begin, end, steps = part
    for step in range(begin, end):
        share = step / steps
        move = pace.first_move * (pace.last_move / pace.first_move) ** share
        temperature = pace.first_temperature * (pace.last_temperature / pace.first_temperature) ** share
        _price_starts(rows, state.prices, cells, starts)
        drawn[:] = 0.0
        for p in range(len(paths.owner)):
            _fill(paths, p, starts, temperature, table)
            _draw(paths, p, starts, temperature, table, reached, drawn)
        for first in range(0, columns, cells + 1):
            for x in range(first + 1, first + cells + 1):
                drawn[x] += drawn[x - 1]
        _step(rows, state, drawn, move, step + 1)


@kernel
def _step(rows: PricedRows, state: PriceState, drawn: Floats, move: float, number: int) -> None:
    """Move the prices by how far what is drawn misses the rows."""
    mean_scale, square_scale = 1.0 - _MEAN_DECAY**number, 1.0 - _SQUARE_DECAY**number
    for r in range(len(rows.most)):
        missed = -rows.most[r]
        for x in range(rows.start[r], rows.start[r + 1]):
            missed += rows.value[x] * drawn[rows.column[x]]
        state.mean[r] = _MEAN_DECAY * state.mean[r] + (1.0 - _MEAN_DECAY) * missed
        state.square[r] = _SQUARE_DECAY * state.square[r] + (1.0 - _SQUARE_DECAY) * missed * missed
        pull = state.mean[r] / mean_scale / (np.sqrt(state.square[r] / square_scale) + _LEAST_SQUARE)
        state.prices[r] += move * pull
        if not rows.is_end[r]:
            state.prices[r] = max(0.0, state.prices[r])
    _share_out(rows, state.prices)


@kernel
def _share_out(rows: PricedRows, prices: Floats) -> None:
    """Bring the prices of the ends to the nearest ones from 0 that add up to their number."""
    ends = np.flatnonzero(rows.is_end)
    falling = -np.sort(-prices[ends])
    total, less = -float(len(ends)), 0.0
    for x in range(len(ends)):
        total += falling[x]
        if falling[x] - total / (x + 1) > 0:
            less = total / (x + 1)
    for r in ends:
        prices[r] = max(0.0, prices[r] - less)


class PathPrices:
    """Prices of the rows of one horizon."""

    def __init__(
        self,
        rows: tuple[Integers, Integers, Floats, Floats, Flags],
        *,
        paths: tuple[Integers, ...],
        shape: tuple[int, int],
    ) -> None:
        """`rows` and `paths`: as `PricedRows` and `PricedPaths` have them; paths own all columns, a block of kinds
        after the other. `shape`: cells and columns.
        """
        self.rows, self.paths, self.shape = PricedRows(*rows), PricedPaths(*paths), shape

    def start(self) -> Floats:
        """Prices of the ends alone."""
        return self.rows.is_end.astype(np.float64)

    def improve(
        self, prices: Floats, *, steps: int, is_warm: bool, num_points: int, seconds_left: Callable[[], float]
    ) -> Floats:
        """Better prices after so many steps, or fewer, which cool sooner, where there is no time.

        `is_warm`: they are good already. `num_points`: rows that say the same of different cells; the more there are,
        the smaller the price of each.
        """
        state = PriceState(prices.copy(), np.zeros_like(prices), np.zeros_like(prices))
        pace = WARM if is_warm else _COLD
        scale, begin, left = _POINTS / num_points, 0, seconds_left()
        pace = pace._replace(first_move=pace.first_move * scale, last_move=pace.last_move * scale)
        while begin < steps and left > 0:
            end = min(begin + _STEPS, steps)
            improve_prices(self.rows, self.paths, state, self.shape, pace, (begin, end, steps))
            begin, before, left = end, left, seconds_left()
            if before > left:
                steps = min(steps, begin + int(_IMPROVED * left / (before - left) * _STEPS))
        return state.prices

    def value(self, prices: Floats) -> float:
        """By how much the cheapest paths cost more than the rows allow: above 0, they contradict each other."""
        return least_sum(self.rows, self.paths, prices, self.shape)
