"""One partition and mapping as a case whose orders are open, from stage replicas as the schedule bound knows them."""

from collections.abc import Sequence
from itertools import chain

import numpy

from planner.bounds.cases.case_tables import MAX_BYTES
from planner.bounds.cases.order_windows import NEVER, Cases
from planner.bounds.order.stage_replicas import StageReplicas


def make_case(
    replicas: StageReplicas,
    numbers: Sequence[int],
    *,
    passes: Sequence[tuple[int, int, int]] | None = None,
    shape: tuple[int, int],
    count: int,
    most: int,
) -> Cases:
    """The one case of stage replicas, each alone on its device or one of several there.

    Figures are the least, so microbatches are alike; bytes are counted in parts that 64 bits have room for, where
    devices have `most`. `numbers`: of every stage replica its device. `passes`: its I and W where they run apart, and B
    if it is shorter, else 0; if not given, no pass is open. `shape`: devices, places on each. `count`: microbatches.
    """
    place = [shape[1] * device + list(numbers[:number]).count(device) for number, device in enumerate(numbers)]
    shift = max(0, most.bit_length() - MAX_BYTES.bit_length() + 1)
    devices, places = shape
    figures = numpy.zeros((10, devices * places), dtype=numpy.int64)
    figures[-1] = MAX_BYTES
    for number, each in enumerate(replicas.replicas):
        parts = (each.returning, each.rest, 0) if passes is None else passes[number]
        sizes = each.held >> shift, each.kept >> shift, -(-each.budgets[0] >> shift)
        figures[:, place[number]] = (each.forward, each.returning, each.rest, each.synchronisation, *parts, *sizes)
    lags = numpy.full((2, len(figures[0]), len(figures[0])), NEVER, dtype=numpy.int64)
    for sent, lag in zip((replicas.outputs, replicas.returns), lags, strict=True):
        for transfer in chain.from_iterable(sent):
            lag[place[transfer.sender], place[transfer.receiver]] = transfer.ticks
    time = numpy.repeat(figures[:3].T.reshape(1, devices, -1, 1), count, axis=3)
    tail, returning, rest, fused = (row[None] for row in figures[3:7])
    held, kept, room = (row.reshape(1, devices, places) for row in figures[7:])
    return Cases(
        time=time.reshape(1, devices, -1), returning=returning, rest=rest, fused=fused,
        forward=lags[:1], backward=lags[1:], sent=numpy.zeros((1, devices, len(fused[0]), 2), numpy.int64),
        tail=tail, held=held, kept=kept, room=room, count=count,
    )  # fmt: skip
