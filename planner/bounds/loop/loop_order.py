"""The fixed order of stages in a loop, played for many sizes of the stages at once."""

from functools import lru_cache

import numpy
from numpy.typing import NDArray

Integers = NDArray[numpy.int64]

FORWARD, BACKWARD = range(2)
"""The way an action goes: F, or a whole backward pass."""

Step = tuple[int, int, int, int]
"""Rank, way, stage and microbatch of an action."""


class LoopOrder:
    """What P ranks with v stages each run of M microbatches: 1F1B, interleaved where v > 1."""

    def __init__(self, *, ranks: int, chunks: int, count: int) -> None:
        self.ranks, self.stages = ranks, ranks * chunks
        orders = [_order_of(rank, ranks=ranks, chunks=chunks, count=count) for rank in range(ranks)]
        self.steps = _in_order(orders, last=self.stages - 1)
        """All actions, each after those that it waits for."""

    def play(self, times: Integers, *, hops: tuple[int, int]) -> Integers:
        """When all has ended, by cases: `times` is [2, stages, cases], what F and B of a stage take.

        `hops`: what an activation takes to the next stage, and a gradient to the one before.
        """
        clocks = numpy.zeros((self.ranks, times.shape[2]), dtype=numpy.int64)
        sent, ends = dict[tuple[int, int, int], Integers](), (self.stages - 1, 0)
        for rank, direction, stage, microbatch in self.steps:
            clock = clocks[rank]
            ready = sent.pop((direction, stage, microbatch), None)
            if ready is not None:
                numpy.maximum(clock, ready, out=clock)
            clock += times[direction, stage]
            if stage != ends[direction]:
                sent[direction, stage + 1 - 2 * direction, microbatch] = clock + hops[direction]
        found: Integers = clocks.max(axis=0)
        return found


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


def _in_order(orders: list[list[Step]], *, last: int) -> list[Step]:
    """All actions, each after those of its rank that come before it and the one whose result it takes."""
    done, places, steps = set[tuple[int, int, int]](), [0] * len(orders), list[Step]()
    while len(steps) < sum(map(len, orders)):
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                _, direction, stage, microbatch = step = order[places[rank]]
                before = stage - 1 + 2 * direction
                if 0 <= before <= last and (direction, before, microbatch) not in done:
                    break
                done.add((direction, stage, microbatch))
                steps.append(step)
                places[rank] += 1
    return steps
