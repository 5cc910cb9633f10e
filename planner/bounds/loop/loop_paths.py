"""Ways to fill the stages of a loop that take too long by paths of its order, each a sum of stages' times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy

from planner.bounds.loop.loop_cuts import LoopCuts
from planner.bounds.loop.loop_order import LoopOrder
from planner.bounds.minimum_costs import Integers

Filling = tuple[int, ...]

_HEAVY_RANK, _HEAVY_STAGE = 12, 15
"""Tenths of the mean that a rank's stages, or a single one, take in the plays that paths are found by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopPaths:
    """Paths of an order: how often each has F and B of every stage, and its transfers.

    Proof. An order is fixed, so that it ends no earlier than any path through it, by whatever times this was found:
    transfers, and for every rank a sum over its stages. So no earlier than the least sum over ways of the ranks that
    hold all layers together; a way is crossed out that is in none within the deadline. Stages of n layers take F and B
    no less than the least of n neighbouring layers, of those places that the ways that are left allow.
    """

    counts: Integers
    """[paths, 2, stages]."""
    travel: Integers
    """[paths] time."""

    def cross_out(self, question: LoopCuts, fillings: list[list[Filling]], *, deadline: int) -> list[list[Filling]]:
        """The fillings, per rank, without those that are in no plan that ends in time, after one look at them."""
        ranks, late = question.ranks, deadline + 1
        most = max(max(row) for rows in fillings for row in rows)
        sizes = [numpy.array(rows, dtype=numpy.int64) for rows in fillings]
        lower, upper = (
            numpy.stack([edge(rows, axis=0) for rows in sizes], axis=1).reshape(1, -1) for edge in (numpy.min, numpy.max)
        )
        times = numpy.minimum(question.times_by_number(lower, upper, most=most), late)
        each = sum(_products(self.counts[:, way, :, None], times[way], late=late) for way in (0, 1))
        own = [
            numpy.minimum(sum(each[:, rank + c * ranks, row] for c, row in enumerate(rows.T)), late)
            for rank, rows in enumerate(sizes)
        ]
        totals = [rows.sum(axis=1) for rows in sizes]
        others = self._least_of_others(own, totals, units=question.units, late=late)
        kept = []
        for rows, takes, total, rest in zip(fillings, own, totals, others, strict=True):
            is_late = (takes + rest[:, total] > deadline).any(axis=0)
            kept.append([row for row, no in zip(rows, is_late.tolist(), strict=True) if not no])
        return kept

    def _least_of_others(
        self, own: Sequence[Integers], totals: Sequence[Integers], *, units: int, late: int
    ) -> list[Integers]:
        """Per rank [paths, layers]: what the others take at least where it has so many layers, with the transfers."""
        least = []
        for takes, total in zip(own, totals, strict=True):
            numbers = numpy.unique(total)
            least.append({int(n): takes[:, total == n].min(axis=1, keepdims=True) for n in numbers})
        nothing = numpy.full((len(self.travel), units + 1), late, dtype=numpy.int64)
        ahead, behind = [nothing.copy()], [nothing.copy()]
        ahead[0][:, 0], behind[0][:, 0] = numpy.minimum(self.travel, late), 0
        for found, ranks in ((ahead, least), (behind, least[::-1])):
            for numbers in ranks:
                found.append(nothing.copy())
                for n, takes in numbers.items():
                    numpy.minimum(found[-1][:, n:], found[-2][:, : units + 1 - n] + takes, out=found[-1][:, n:])
        rest = []
        for before, after, numbers in zip(ahead[:-1], behind[-2::-1], least, strict=True):
            rest.append(nothing.copy())
            for n in numbers:
                rest[-1][:, n] = (before[:, : units + 1 - n] + after[:, units - n :: -1]).min(axis=1)
        return rest


def _products(counts: Integers, times: Integers, *, late: int) -> Integers:
    """Their products, or `late` where these are as large."""
    return numpy.where(times > late // numpy.maximum(counts, 1), late, counts * times)


@lru_cache(maxsize=64)
def paths_of(order: LoopOrder, *, mean: tuple[int, int], hops: tuple[int, int]) -> LoopPaths:
    """Those that take longest where all stages take the mean of F and B, and where a rank or a stage takes longer."""
    stages, ranks = order.stages, order.ranks
    tenths = numpy.full((stages, 1 + ranks + stages), 10)
    for rank in range(ranks):
        tenths[rank::ranks, 1 + rank] = _HEAVY_RANK
    tenths[numpy.arange(stages), numpy.arange(stages) + 1 + ranks] = _HEAVY_STAGE
    counts, travel = order.longest_paths(numpy.multiply.outer(numpy.array(mean), tenths) // 10, hops=hops)
    found = numpy.unique(numpy.concatenate((counts, travel[None])), axis=1)
    return LoopPaths(counts=found[:-1].T.reshape(-1, 2, stages), travel=found[-1])
