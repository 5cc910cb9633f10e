"""The time-indexed bound for many cells: prices of the rows that stage replicas share, at some of the cells.

Whatever is left out, and however good the prices are: the checker of the bound adds up what they prove.
"""

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

_LEVELS = (200, 600, 2_400)
"""Most cells of coarse rows and of finer ones."""
_FIRST_STEPS, _STEPS, _FAILURES = 900, 300, 3
"""Of a first climb, and of later ones; a level ends after so many in a row that prove nothing more."""
_AHEAD = 1.01
"""Of what is proved: where it climbs next."""
_PARTS = 1 << 16
"""Parts of one that prices are told in."""

Prices = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Rows of families at some cells, one family after the other, and then those of the last cell."""

    numbers: Integers
    arrays: tuple[Integers, Integers, Prices, Prices, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]
    """Where the terms of a row begin, columns, values, most, and which say that everything is done in the end."""


class Climber(Protocol):
    """Prices of the rows of one horizon."""

    def start(self) -> Prices:
        """Prices to begin with."""

    def climb(self, prices: Prices, *, steps: int, is_warm: bool, has_time: Callable[[], bool]) -> Prices:
        """Better ones."""

    def value(self, prices: Prices) -> float:
        """Above 0 if they prove that there is no plan."""


_Make = Callable[..., Climber]
"""(rows, paths=..., num_columns=...) to a climber."""


class _Level:
    """Rows of cells of one length, at the same number of cells of every horizon."""

    def __init__(self, model: TimeIndexed, *, high: int, make: _Make) -> None:
        self.model, self.make = model, make
        shortest = min(min(each for each in replica.cells if each) for replica in model.replicas)
        self.num_points = high // max(1, shortest // 2) + 1

    def rows(self, cells: int) -> SharedRows:
        """Of one horizon."""
        rows = self.model.rows(cells)
        points = np.rint(np.linspace(0, cells, self.num_points)).astype(np.int64)
        families = [family for family in rows.families() if family.owner < 0 and not self._is_known(family)]
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

    def climber(self, cells: int) -> Climber:
        """Of one horizon."""
        return self.make(self.rows(cells), paths=self.paths(cells), num_columns=self.model.num_columns(cells))

    def paths(self, cells: int) -> list[ReplicaPaths]:
        """Of all stage replicas."""
        return self.model.paths(cells)

    def spread(self, prices: Prices, *, before: "_Level") -> Prices:
        """Prices of another level: those of families by their share of the time."""
        num_families = sum(not family.since for family in self._families())
        old = prices[: num_families * before.num_points].reshape(num_families, before.num_points)
        sums = np.concatenate([np.zeros((num_families, 1)), np.cumsum(old, axis=1)], axis=1)
        ends, own = np.linspace(0, 1, before.num_points + 1), np.linspace(0, 1, self.num_points + 1)
        new = np.array([np.diff(np.interp(own, ends, each)) for each in sums])
        return np.concatenate([new.ravel(), prices[num_families * before.num_points :]])

    def _families(self) -> list[RowFamily]:
        rows = self.model.rows(self.num_points)
        return [family for family in rows.families() if family.owner < 0 and not self._is_known(family)]

    def prove(self, prices: Prices, *, cells: int) -> dict[str, object] | None:
        """What a certificate holds if no plan ends within so many cells."""
        factors = dict[int, int]()
        for number, price in zip(self.rows(cells).numbers.tolist(), np.rint(prices * _PARTS).tolist(), strict=True):
            if price > 0:
                factors[number] = factors.get(number, 0) + int(price)
        multipliers = sorted(factors.items())
        model, rows = self.model, self.model.rows(cells)
        if not is_contradiction(rows, multipliers, most=model.count, paths=self.paths(cells)):
            return None
        return {"cell_ns": model.cell_ns, "multipliers": [list(pair) for pair in multipliers]}


def _terms(family: RowFamily, rows: CellRows, *, points: Integers) -> tuple[Integers, Integers, Integers, Prices]:
    """Numbers of the rows at some cells, how many terms each has, and these."""
    entries = np.array(family.entries)
    blocks, times = entries[:, 0] * KINDS + entries[:, 1], points[:, None] + entries[:, 2]
    has = times >= 0
    columns = blocks * (rows.cells + 1) + np.minimum(times, rows.cells)
    values = np.broadcast_to(entries[:, 3].astype(np.float64), has.shape)
    numbers = family.first + family.stride * (points - family.since)
    return numbers, has.sum(axis=1), columns[has], values[has]


def raise_by_prices(
    problem: Problem,
    costs: CostModel,
    *,
    start_ns: int,
    most_ns: int,
    make: _Make,
    has_time: Callable[[], bool],
    levels: Sequence[int] = _LEVELS,
) -> tuple[int, dict[str, object]] | None:
    """The largest value found from `start_ns` to `most_ns` with what its certificate holds; None if none is above.

    Prices of coarse cells are where those of finer ones start.
    """
    best: tuple[int, dict[str, object]] | None = None
    before: _Level | None = None
    prices: Prices | None = None
    for most_cells in levels:
        lengths = choose_cells(problem, costs, value_ns=most_ns, most_cells=most_cells)
        if not lengths or (before is not None and lengths[0] >= before.model.cell_ns):
            continue
        model = TimeIndexed(problem, costs, cell_ns=lengths[0])
        high = model.cells(most_ns - 1)
        is_small = model.size(high) <= MOST_TERMS and model.places(high) <= MOST_PLACES
        if high < 1 or not is_small or None in model.graphs:
            continue
        level = _Level(model, high=high, make=make)
        prices = None if prices is None or before is None else level.spread(prices, before=before)
        known = start_ns if best is None else best[0]
        found, prices = _climb(level, prices, known=(model.cells(known - 1), high), has_time=has_time)
        before, best = level, found or best
    return best


def _climb(
    level: _Level, prices: Prices | None, *, known: tuple[int, int], has_time: Callable[[], bool]
) -> tuple[tuple[int, dict[str, object]] | None, Prices | None]:
    """The best bound above `known[0]` cells and up to `known[1]`, and the last prices."""
    low, high = known
    at, best, failed = high if prices is None else min(high, int(low * _AHEAD) + 1), None, 0
    while low < at and failed < _FAILURES and has_time():
        climber, is_warm = level.climber(at), prices is not None
        steps = _STEPS if is_warm else _FIRST_STEPS
        prices = climber.start() if prices is None else prices
        prices = climber.climb(prices, steps=steps, is_warm=is_warm, has_time=has_time)
        reached, fields = _last_proved(level, prices, low=low, high=at), None
        while reached > low and fields is None:
            fields = level.prove(prices, cells=reached)
            reached -= fields is None
        failed = 0 if fields is not None else failed + 1
        if fields is not None:
            low, best = reached, (level.model.value_ns(reached), fields)
        # what is missed, in microbatches, as a share of the time
        share = climber.value(prices) / climber.start().sum() / level.model.count
        at = min(high, max(int(at * (1 + share)), int(low * _AHEAD), low + 1))
    return best, prices


def _last_proved(level: _Level, prices: Prices, *, low: int, high: int) -> int:
    """The longest horizon from `low` on that prices seem to exclude."""
    while low < high:
        middle = (low + high + 1) // 2
        if level.climber(middle).value(prices) > 0:
            low = middle
        else:
            high = middle - 1
    return low
