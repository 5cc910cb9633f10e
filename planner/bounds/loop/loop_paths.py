"""Ways to fill the stages of a loop that take too long by paths of its order, each a sum of stages' times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy

from planner.bounds.loop.loop_cases import ActionsLeft
from planner.bounds.loop.loop_cuts import Fillings, LoopCuts
from planner.bounds.loop.loop_order import LoopOrder
from planner.bounds.minimum_costs import Integers

_MOST_CELLS = 100_000_000
"""Actions, and waits, of all the plays that paths of an order are found by."""

_LARGEST = 1 << 58
"""Of larger times sums might not be exact."""

_PER_FILLING, _PER_WAVE, _PER_RANK = 1_024, 4_096, 16_384
"""What takes as long as numbers that are looked at: a way to begin with, a wave of plays, and a rank of a look."""

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

    def cross_out(self, question: LoopCuts, fillings: Fillings, *, deadline: int) -> Fillings:
        """The fillings without those that are in no plan that ends in time, after one look at them."""
        late, sizes = deadline + 1, [numpy.array(rows, dtype=numpy.int64) for rows in fillings]
        lower, upper = ([edge(rows, axis=0) for rows in sizes] for edge in (numpy.min, numpy.max))
        times = question.times_by_number(numpy.ravel(lower, "F"), numpy.ravel(upper, "F"))
        forward, backward = (_products(self.counts[:, kind, :, None], times[kind], late=late) for kind in (0, 1))
        both, kept = numpy.minimum(forward + backward, late), Fillings()
        own = [_sums(both[:, rank :: question.ranks], rows, late=late) for rank, rows in enumerate(sizes)]
        totals = [rows.sum(axis=1) for rows in sizes]
        others = self._least_of_others(own, totals, units=question.units, late=late)
        for rows, takes, total, rest in zip(fillings, own, totals, others, strict=True):
            is_kept = numpy.all(takes + rest[:, total] <= deadline, axis=0)
            kept.append([rows[number] for number in numpy.flatnonzero(is_kept)])
        return kept

    def _least_of_others(
        self, own: Sequence[Integers], totals: Sequence[Integers], *, units: int, late: int
    ) -> list[Integers]:
        """Per rank [paths, layers]: what the others take at least where it has so many layers, with the transfers."""
        least = [
            {int(n): takes[:, total == n].min(axis=1, keepdims=True) for n in numpy.unique(total)}
            for takes, total in zip(own, totals, strict=True)
        ]
        nothing = numpy.full((len(self.travel), units + 1), late, dtype=numpy.int64)
        ahead, behind = [nothing.copy()], [nothing.copy()]
        ahead[0][:, 0], behind[0][:, 0] = numpy.minimum(self.travel, late), 0
        for found, ranks in ((ahead, least), (behind, least[::-1])):
            for numbers in ranks:
                found.append(nothing.copy())
                for n, own_least in numbers.items():
                    numpy.minimum(found[-1][:, n:], found[-2][:, : units + 1 - n] + own_least, out=found[-1][:, n:])
        rest = [nothing.copy() for _ in least]
        for others, before, after, numbers in zip(rest, ahead[:-1], behind[-2::-1], least, strict=True):
            for n in numbers:
                others[:, n] = (before[:, : units + 1 - n] + after[:, units - n :: -1]).min(axis=1)
        return rest


def _products(counts: Integers, times: Integers, *, late: int) -> Integers:
    """Their products, or `late` where these are as large."""
    return numpy.where(times > late // numpy.maximum(counts, 1), late, counts * numpy.minimum(times, late))


def _sums(takes: Integers, rows: Integers, *, late: int) -> Integers:
    """[paths, ways] what the stages of a rank take together, or `late`; `takes` is [paths, chunks, layers]."""
    found = numpy.zeros((len(takes), len(rows)), dtype=numpy.int64)
    for chunk, numbers in enumerate(rows.T):
        found += takes[:, chunk].take(numbers, axis=1)
        numpy.minimum(found, late, out=found)
    return found


def cross_out(question: LoopCuts, fillings: Fillings, *, deadline: int, effort: ActionsLeft) -> Fillings:
    """The fillings that paths leave; all of them, or more than necessary, where the effort does not suffice."""
    order, number = question.order, sum(map(len, fillings))
    cells = len(order.waves) * order.ranks * (1 + order.ranks + order.stages)
    price = _PER_FILLING * number + _PER_WAVE * len(order.waves) + 8 * cells
    travel = 2 * question.count * order.stages * max(question.hops)
    if cells > _MOST_CELLS or max(travel, deadline) > _LARGEST or not effort.take_paths(price):
        return fillings
    forward, backward = (question.tables.sums[:, -1] // order.stages + question.overhead).tolist()
    paths, before = paths_of(order, mean=(forward, backward), hops=question.hops), 0
    while all(fillings) and number != before:
        looked_at = number * question.chunks + 4 * question.units * order.ranks
        if not effort.take_paths(_PER_RANK * order.ranks + 2 * len(paths.travel) * looked_at):
            break
        fillings = paths.cross_out(question, fillings, deadline=deadline)
        before, number = number, sum(map(len, fillings))
    return fillings


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
