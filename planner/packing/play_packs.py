"""When pipelines end under 1F1B, for many of equally many packs at once, in whole nanoseconds.

With n stages behind the first one, stage s runs the forward of pack k in round 2k + s and its backward in round
2k + 2n + 1 - s. So every stage has one action per round, in its order under 1F1B, and waits for what a neighbour did
one round before: a round is a few operations on arrays.
"""

import numpy

from planner.bounds.listed.packed_sequences import Table

_NEVER = -(2**62)


def play_packs(forward: Table, backward: Table, *, transfer_ns: int = 0) -> Table:
    """When each of P pipelines ends; times are [P, K, S] by pipeline, pack in its order, and stage."""
    pipelines, count, stages = forward.shape
    last, packs = stages - 1, 2 * numpy.arange(count)
    durations = numpy.zeros((2 * (count + last), stages, pipelines), dtype=numpy.int64)
    waits = numpy.full((2 * (count + last), stages, 1), _NEVER, dtype=numpy.int64)
    for stage in range(stages):
        ahead, back = packs + stage, packs + 2 * last + 1 - stage
        durations[ahead, stage], durations[back, stage] = forward[:, :, stage].T, backward[:, :, stage].T
        waits[ahead, stage] = transfer_ns if stage else _NEVER
        waits[back, stage] = transfer_ns if stage < last else _NEVER
    ends = numpy.zeros((stages + 2, pipelines), dtype=numpy.int64)
    mine, other = ends[1:-1], numpy.empty((stages, pipelines), dtype=numpy.int64)
    places = numpy.arange(stages)
    neighbours = [places + numpy.where((places + parity) % 2, 2, 0) for parity in (0, 1)]
    for number, (taken, wait) in enumerate(zip(durations, waits, strict=True)):
        numpy.take(ends, neighbours[number % 2], axis=0, out=other)
        other += wait
        numpy.maximum(mine, other, out=mine)
        mine += taken
    return numpy.asarray(mine.max(axis=0), dtype=numpy.int64)
