"""The fixed order of stages in a loop, played for many sizes of the stages at once."""

from functools import cached_property, lru_cache
from itertools import count

import numpy
from numpy.typing import NDArray

Integers = NDArray[numpy.int64]

FORWARD, BACKWARD = range(2)
"""The way an action goes: F, or a whole backward pass."""

_NOTHING, _NOBODY = range(2)
"""Places of what is there from the start, and of what nobody takes."""
_LARGEST = (1 << 31) - 1
_LEFT = 2
"""Column of a table of waves: the place of what is sent."""

Step = tuple[int, int, int, int]
"""Rank, direction, stage and microbatch of an action."""


class LoopOrder:
    """What P ranks with v stages each run of M microbatches: 1F1B, interleaved where v > 1."""

    def __init__(self, *, ranks: int, chunks: int, count: int) -> None:
        self.ranks, self.stages, self.count = ranks, ranks * chunks, count
        orders = [_order_of(rank, ranks=ranks, chunks=chunks, count=count) for rank in range(ranks)]
        self.waves = _in_waves(orders, last=self.stages - 1)
        """All actions, those of a wave on different ranks, each in a later one than those that it waits for."""
        self.steps = [step for wave in self.waves for step in wave]
        """The same in a row."""

    @cached_property
    def _table(self) -> Integers:
        """[4, waves, ranks] row of `times`, places of what is taken and of what is sent, and direction."""
        return _placed(self.waves, ranks=self.ranks, stages=self.stages)

    def play(self, times: Integers, *, hops: tuple[int, int]) -> Integers:
        """When all has ended, by cases: `times` is [2, stages, cases], what F and B of a stage take.

        `hops`: what an activation takes to the next stage, and a gradient to the one before.
        """
        *places, directions = self._table
        cases = times.shape[2]
        longest = self.count * (times.sum(axis=(0, 1), dtype=float).max(initial=0) + 2 * self.stages * max(hops))
        exact = numpy.int32 if longest <= _LARGEST else numpy.int64  # half the bytes, half the time
        rows = numpy.zeros((2 * self.stages + 1, cases), exact)
        rows[:-1] = times.reshape(2 * self.stages, cases)
        clocks = numpy.zeros((self.ranks, cases), exact)
        sent, some = numpy.zeros((int(places[_LEFT].max()) + 1, cases), exact), numpy.empty_like(clocks)
        for row, taken, left, hop in zip(*places, numpy.array(hops, exact)[directions][:, :, None], strict=True):
            numpy.maximum(clocks, sent.take(taken, axis=0, out=some, mode="clip"), out=clocks)
            clocks += rows.take(row, axis=0, out=some, mode="clip")  # `raise` would copy into `out`
            sent[left] = numpy.add(clocks, hop, out=some)
        found: Integers = clocks.max(axis=0).astype(numpy.int64)
        return found

    def longest_paths(self, times: Integers, *, hops: tuple[int, int]) -> tuple[Integers, Integers]:
        """[2 * stages, cases] how often F and B of each stage are on what ends last, and [cases] its transfers' time.

        `times`: [2, stages, cases].
        """
        rows, taken, left, directions = self._table
        cases = numpy.arange(times.shape[2])
        takes = numpy.concatenate((times.reshape(-1, len(cases)), numpy.zeros_like(times[0, :1])))
        clocks = numpy.zeros((self.ranks, len(cases)), numpy.int64)
        sent, sender = numpy.zeros((left.max() + 1, len(cases)), numpy.int64), numpy.zeros((left.max() + 1, 2), int)
        waits, senders = numpy.zeros((len(rows), *clocks.shape), bool), numpy.zeros((*rows.shape, 2), int)
        hop, here = numpy.array(hops)[directions], numpy.zeros((self.ranks, 2), int)
        here[:, 1] = numpy.arange(self.ranks)
        for wave, row in enumerate(rows):
            senders[wave], came = sender[taken[wave]], sent[taken[wave]]
            numpy.greater(came, clocks, out=waits[wave])
            clocks = numpy.maximum(clocks, came) + takes[row]
            sent[left[wave]] = clocks + hop[wave][:, None]
            here[:, 0] = wave
            sender[left[wave]] = here
        counts, travel = numpy.zeros_like(takes), numpy.zeros_like(cases)
        rank, until = clocks.argmax(axis=0), numpy.full(len(cases), len(rows))
        for wave in range(len(rows))[::-1]:
            reached = until >= wave
            counts[rows[wave][rank], cases] += reached
            came = reached & waits[wave][rank, cases]
            travel += came * hop[wave][rank]
            until, rank = numpy.where(came, senders[wave][rank].T, (until, rank))
        return counts[:-1], travel


@lru_cache(maxsize=64)
def order_of(*, ranks: int, chunks: int, count: int) -> LoopOrder:
    """The order, made once."""
    return LoopOrder(ranks=ranks, chunks=chunks, count=count)


def _order_of(rank: int, *, ranks: int, chunks: int, count: int) -> list[Step]:
    """What one rank runs: forwards by turns of P microbatches, chunk by chunk, backwards so from the last chunk."""
    forward_order = [
        (chunk, microbatch)
        for first in range(0, count, ranks)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + ranks, count))
    ]
    after = ranks - 1 - rank
    ahead = min(after if chunks == 1 else 2 * after + (chunks - 1) * ranks, len(forward_order))
    forwards = [(rank, FORWARD, chunk * ranks + rank, microbatch) for chunk, microbatch in forward_order]
    order = forwards[:ahead]
    for number, (chunk, microbatch) in enumerate(forward_order):
        order += forwards[ahead + number : ahead + number + 1]
        order.append((rank, BACKWARD, (chunks - 1 - chunk) * ranks + rank, microbatch))
    return order


def _in_waves(orders: list[list[Step]], *, last: int) -> list[list[Step]]:
    """All actions, each in the first wave after those of the action before it and of the one whose result it takes."""
    done, places, waves = set[tuple[int, int, int]](), [0] * len(orders), list[list[Step]]()
    while nexts := [order[place] for order, place in zip(orders, places, strict=True) if place < len(order)]:
        wave = list[Step]()
        for step in nexts:
            rank, direction, stage, microbatch = step
            before = stage - 1 + 2 * direction
            if not 0 <= before <= last or (direction, before, microbatch) in done:
                wave.append(step)
                places[rank] += 1
        done.update(step[1:] for step in wave)
        waves.append(wave)
    return waves


def _placed(waves: list[list[Step]], *, ranks: int, stages: int) -> Integers:
    """The waves as a table; what is sent has a place of its own until it is taken, and ranks may do nothing."""
    found = numpy.zeros((len(waves), ranks, 4), dtype=numpy.int64)
    found[:] = 2 * stages, _NOTHING, _NOBODY, FORWARD
    places, unused, new = dict[tuple[int, int, int], int](), list[int](), count(_NOBODY + 1)
    for row, wave in zip(found, waves, strict=True):
        for rank, direction, stage, microbatch in wave:
            taken = places.pop((direction, stage - 1 + 2 * direction, microbatch), _NOTHING)
            unused += [taken] if taken != _NOTHING else []
            row[rank] = direction * stages + stage, taken, _NOBODY, direction
        for rank, direction, stage, microbatch in wave:
            if stage != (stages - 1, 0)[direction]:
                row[rank, _LEFT] = places[direction, stage, microbatch] = unused.pop() if unused else next(new)
    return found.transpose(2, 0, 1).copy()
