"""The time-indexed bound for many cells: prices of the rows that stage replicas share, at some of the cells.

Whatever is left out, and however good the prices are: the checker of the bound adds up what they prove.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.bounds.minimum_costs import Integers
from planner.bounds.order.cell_rows import KINDS, CellRows, RowFamily, is_rest
from planner.bounds.order.time_indexed_bound import (
    MOST_PLACES,
    MOST_TERMS,
    ReplicaPaths,
    TimeIndexed,
    choose_cells,
    is_contradiction,
)
from planner.layout.costs import CostModel
from planner.problem import Problem

_MOST_CELLS = 2_400
"""Of the rows that prove."""
_FIRST_STEPS, _STEPS, _FAILURES = 900, 300, 3
"""Of a first search, and of later ones, twice as many after one that proves nothing more; a level ends after so many
of those in a row."""
_FIRST_SHARE, _AHEAD = 0.95, 1.005
"""Of the longest horizon: where the first search is; of what is proved: where the next is."""
_BETTER = 0.8
"""Of what was missed before: where less is missed another step is worth while."""
_BACK = 0.06
"""By which part of a horizon the next one is shorter, at most: prices that are new have far to go."""
_FEWER = 2
"""Joined states are searched where they are fewer by this factor."""
_REPLICA, _KIND, _AFTER, _FACTOR = range(4)
"""Columns of entries."""
_PARTS = 1 << 16
"""Parts of one that prices are told in."""

Prices = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Rows of families at some cells, one family after the other, and then those of the last cell."""

    numbers: Integers
    arrays: tuple[Integers, Integers, Prices, Prices, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]
    """Where the terms of a row begin, columns, values, most, and which say that everything is done in the end."""


class PriceSearch(Protocol):
    """Prices of the rows of one horizon."""

    def start(self) -> Prices:
        """Prices to begin with."""

    def improve(
        self, prices: Prices, *, steps: int, is_warm: bool, num_points: int, seconds_left: Callable[[], float]
    ) -> Prices:
        """Better ones."""

    def value(self, prices: Prices) -> float:
        """Above 0 if they prove that there is no plan."""


_Make = Callable[..., PriceSearch]
"""(arrays of rows, paths=`path_arrays`, shape=(cells, columns)) to a prices_search."""


class _Level:
    """Rows of cells of one length, at the same number of cells of every horizon."""

    def __init__(
        self, problem: Problem, costs: CostModel, *, cell_ns: int, most_ns: int, make: _Make, is_rough: bool = False
    ) -> None:
        self.make, self.is_rough = make, is_rough
        self.model, joined = (
            TimeIndexed(problem, costs, cell_ns=cell_ns, is_joined=is_joined, is_rough=is_rough)
            for is_joined in (False, True)
        )
        """With exact paths, which prove."""
        self.searched = joined if _FEWER * joined.places(1) < self.model.places(1) else self.model
        self.high = self.model.cells(most_ns - 1)
        shortest = min((each for replica in self.model.replicas for each in replica.cells if each), default=1)
        self.num_points = self.high // max(1, shortest // 2) + 1

    @property
    def is_open(self) -> bool:
        """Whether there is a horizon, and it is not too long."""
        is_small = self.model.size(self.high) <= MOST_TERMS and self.model.places(self.high) <= MOST_PLACES
        return self.high > 0 and is_small and None not in self.model.graphs

    def rows(self, cells: int) -> SharedRows:
        """Of one horizon."""
        rows = self.model.rows(cells)
        points, families = np.rint(np.linspace(0, cells, self.num_points)).astype(np.int64), self._families(rows)
        last = np.array([cells])
        made = [_terms(family, rows, points=last if family.since else points) for family in families]
        most = [np.full(len(number), float(f.most)) for f, (number, *_) in zip(families, made, strict=True)]
        is_end = [np.full(len(number), f.is_end) for f, (number, *_) in zip(families, made, strict=True)]
        numbers, sizes, columns, values = (np.concatenate(each) for each in zip(*made, strict=True))
        starts = np.append(0, np.cumsum(sizes))
        return SharedRows(numbers, (starts, columns, values, np.concatenate(most), np.concatenate(is_end)))

    def _is_known(self, family: RowFamily) -> bool:
        """Whether paths say it: that W follow I where these leave something; or there is nothing to do."""
        own = self.model.replicas[family.entries[0][0]]
        return is_rest(family) and (own.rest == 0 or (own.kept > 0 and not family.is_end))

    def prices_search(self, cells: int) -> PriceSearch:
        """Of one horizon."""
        paths, shape = path_arrays(self.searched.paths(cells)), (cells, self.model.num_columns(cells))
        return self.make(self.rows(cells).arrays, paths=paths, shape=shape)

    def spread(self, prices: Prices, *, before: "_Level") -> Prices:
        """Prices of another level: those of families by their share of the time."""
        num_families = sum(not family.since for family in self._families(self.model.rows(self.num_points)))
        old = prices[: num_families * before.num_points].reshape(num_families, before.num_points)
        sums = np.concatenate([np.zeros((num_families, 1)), np.cumsum(old, axis=1)], axis=1)
        ends, own = np.linspace(0, 1, before.num_points + 1), np.linspace(0, 1, self.num_points + 1)
        new = np.array([np.diff(np.interp(own, ends, each)) for each in sums])
        return np.concatenate([new.ravel(), prices[num_families * before.num_points :]])

    def _families(self, rows: CellRows) -> list[RowFamily]:
        return [family for family in rows.families() if family.owner < 0 and not self._is_known(family)]

    def prove(self, prices: Prices, *, cells: int) -> dict[str, object] | None:
        """What a certificate holds if no plan ends within so many cells."""
        factors = dict[int, int]()
        for number, price in zip(self.rows(cells).numbers.tolist(), np.rint(prices * _PARTS).tolist(), strict=True):
            if price > 0:
                factors[number] = factors.get(number, 0) + int(price)
        multipliers = sorted(factors.items())
        model, rows = self.model, self.model.rows(cells)
        if not is_contradiction(rows, multipliers, most=model.count, paths=model.paths(cells)):
            return None
        return {"cell_ns": model.cell_ns, "multipliers": [list(pair) for pair in multipliers]}


def path_arrays(paths: Sequence[ReplicaPaths]) -> tuple[Integers, ...]:
    """Where states of a graph begin, and arcs to a state; kinds and sources of arcs; cells of kinds, owners, windows.

    A move that may begin before the first cell may begin there.
    """
    first, arcs, kinds, sources = [0], [0], list[int](), list[int]()
    cells = np.ones((len(paths), KINDS), np.int64)
    for own, durations in zip(paths, cells, strict=True):
        arriving: list[list[tuple[int, int]]] = [[] for _ in range(own.graph.num_states)]
        for move in own.graph.moves:
            durations[move.kind] = move.cells
            for source, target in zip(move.source.tolist(), move.target.tolist(), strict=True):
                arriving[target].append((move.kind, source))
        for each in arriving:
            kinds += [kind for kind, _ in each]
            sources += [source for _, source in each]
            arcs.append(len(kinds))
        first.append(len(arcs) - 1)
    windows = np.array([own.windows for own in paths])
    windows[:, :, 0] = np.maximum(windows[:, :, 0], 0)
    columns = map(np.array, (first, arcs, kinds, sources))
    return (*columns, cells, np.array([own.owner for own in paths]), windows)


def _terms(family: RowFamily, rows: CellRows, *, points: Integers) -> tuple[Integers, Integers, Integers, Prices]:
    """Numbers of the rows at some cells, how many terms each has, and these."""
    entries = np.array(family.entries)
    blocks, times = entries[:, _REPLICA] * KINDS + entries[:, _KIND], points[:, None] + entries[:, _AFTER]
    has = times >= 0
    columns = blocks * (rows.cells + 1) + np.minimum(times, rows.cells)
    values = np.broadcast_to(entries[:, _FACTOR].astype(np.float64), has.shape)
    numbers = family.first + family.stride * (points - family.since)
    return numbers, has.sum(axis=1), columns[has], values[has]


def raise_by_prices(
    problem: Problem,
    costs: CostModel,
    *,
    start_ns: int,
    most_ns: int,
    make: _Make,
    seconds_left: Callable[[], float],
) -> tuple[int, dict[str, object]] | None:
    """The largest value found from `start_ns` to `most_ns` with what its certificate holds; None if none is above.

    Prices of coarse cells are where those of finer ones start.
    """
    best: tuple[int, dict[str, object]] | None = None
    before: _Level | None = None
    prices, share = None, _FIRST_SHARE
    fine = choose_cells(problem, costs, value_ns=most_ns, most_cells=_MOST_CELLS)[:1]
    rough = TimeIndexed.rough_cell(problem, costs)
    for cell_ns, is_rough in (*([] if rough in fine else [(rough, True)]), *((cell, False) for cell in fine)):
        level = _Level(problem, costs, cell_ns=cell_ns, most_ns=most_ns, make=make, is_rough=is_rough)
        if not level.is_open:
            continue
        prices = None if prices is None or before is None else level.spread(prices, before=before)
        low, before = 0 if is_rough else level.model.cells(start_ns - 1), level
        best, prices, share = _improve(level, prices, low=low, share=share, seconds_left=seconds_left)
    return best


def _improve(
    level: _Level, prices: Prices | None, *, low: int, share: float, seconds_left: Callable[[], float]
) -> tuple[tuple[int, dict[str, object]] | None, Prices | None, float]:
    """The best bound above `low` cells, the last prices, and the share of the longest horizon that they reach."""
    at, high, best, failed, before = max(low + 1, int(level.high * share)), level.high, None, 0, -math.inf
    while low < at <= high and failed < _FAILURES and seconds_left() > 0:
        prices_search, is_warm = level.prices_search(at), prices is not None
        steps = _STEPS << (0 if level.is_rough else failed) if is_warm else _FIRST_STEPS
        prices = prices_search.start() if prices is None else prices
        prices = prices_search.improve(
            prices, steps=steps, is_warm=is_warm, num_points=level.num_points, seconds_left=seconds_left
        )
        # what is missed, in microbatches, as a share of the time
        missed, share = prices_search.value(prices) / prices_search.start().sum() / level.model.count, at / high
        proved = None if level.is_rough else _prove(level, prices, low=low, high=at)
        is_better = not level.is_rough and _BETTER * before < missed < 0
        failed, before = failed + (not is_better), missed
        if proved is not None:
            low, best, failed = proved[0], (level.model.value_ns(proved[0]), proved[1]), 0
        at = min(high, max(int(at * (1 + max(missed, -_BACK))), int(low * _AHEAD), low + 1))
    return best, prices, share


def _prove(level: _Level, prices: Prices, *, low: int, high: int) -> tuple[int, dict[str, object]] | None:
    """The longest horizon above `low` that prices exclude, with what a certificate holds; None if they exclude none."""
    reached = _last_proved(level, prices, low=low, high=high)
    for cells in (reached, int(reached / _AHEAD)):
        fields = level.prove(prices, cells=cells) if cells > low else None
        if fields is not None:
            return cells, fields
    return None


def _last_proved(level: _Level, prices: Prices, *, low: int, high: int) -> int:
    """The longest horizon from `low` on that prices seem to exclude. They say most about the one they were made for."""
    if level.prices_search(high).value(prices) > 0:
        return high
    later = range(low + 1, high)
    return low + bisect_left(later, True, key=lambda cells: level.prices_search(cells).value(prices) <= 0)
