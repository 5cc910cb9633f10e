"""Lower bounds on every packing of sequences that pipelines run under 1F1B, equally many packs each.

A pack takes its sequences' times, added up, and its own. So what bounds every dealing of single sequences bounds every
packing, too: of its first and last pack a pipeline waits for one sequence at least.

The longest pack p of a pipeline with S stages costs idle time. Consider the last stage until the backward of p, that
backward on its way to the first stage, and the first stage from then on. Together they are all the work of a pipeline
(counted on either stage), and on top the backwards of p on S - 1 stages, less the forwards of the S - 1 packs behind p,
which the first stage ran before. None of these takes longer than that of p.

Between the forward and the backward of p the first stage runs S - 1 forwards of packs behind p and S - 1 backwards of
packs before it, at most, while p goes to the last stage and back. So a pipeline takes all of p on its way, and of every
other pack what is not hidden behind that: a part of 1 - b at least, if no direction takes more than b of a pack's work.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy

Table = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
"""Of times."""


def bound_packs(
    forward: Table, backward: Table, *, own: Table, num_packs: int, pipelines: int, transfer_ns: int = 0
) -> int:
    """No packing ends before; times are [N, S] of sequences and [2, S] of a pack beside them; all pipelines have packs.

    `num_packs`: there are at least so many (`fewest_packs`). Per stage, the slowest pipeline takes the mean at least of
    all work, with heads and tails of different sequences; and the k + 1 least of the k x pipelines + 1 longest.
    """
    loads, hops = forward + backward, 2 * transfer_ns * numpy.arange(forward.shape[1])
    before = own.sum(axis=0).cumsum() - own.sum(axis=0) + hops
    ends = [_before(rows) for rows in (forward, backward)]
    around = sum(numpy.sort(rows, axis=0)[:pipelines].sum(axis=0) for rows in ends) + pipelines * before
    work = loads.sum(axis=0) + num_packs * own.sum(axis=0) + around
    mean = -(-work // pipelines)
    most = max(int(mean.max()), int(loads.sum(axis=1).max() + own.sum() + hops[-1]))
    falling = numpy.sort(loads, axis=0)[::-1]
    several = range(1, (len(loads) - 1) // pipelines + 1)
    crowded = [falling[k * pipelines - k : k * pipelines + 1].sum(axis=0) for k in several]
    if crowded:
        least = sum(rows.min(axis=0) for rows in ends) + before + own.sum(axis=0)
        most = max(most, int((numpy.max(crowded, axis=0) + least).max()))
    hop = int(hops[1]) if len(hops) > 1 else 0
    return max(most, _bound_by_longest(loads, forward, own=own, num_packs=num_packs, pipelines=pipelines, hop=hop))


def _before(rows: Table) -> Table:
    """[N, S] what the stages before each one take."""
    return numpy.asarray(rows.cumsum(axis=1) - rows, dtype=numpy.int64)


def _bound_by_longest(loads: Table, forward: Table, *, own: Table, num_packs: int, pipelines: int, hop: int) -> int:
    """By the longest sequences: k pipelines hold all that are longer than the longest of the next one.

    In so much time each of the k has room for only so much work, by its own longest, so that one more has a sequence
    behind those at least: of all times that leave room for all work, the least is found by halving. `hop`: of a
    transfer there and back.
    """
    last = forward.shape[1] - 1
    if last < 1:
        return 0
    backward = loads - forward
    work, order = numpy.minimum(loads[:, 0], loads[:, last]), numpy.argsort(-forward[:, 0], kind="stable")
    ratio = _idle_per_forward(forward, backward, own=own)
    idle = [int(ratio * longest) for longest in (forward[order, 0] + own[0, 0]).tolist()]
    hidden = _hidden_part(forward[:, 0], backward[:, 0], work=work)
    paths = (loads[:, 1:].sum(axis=1) + (hidden.numerator * work) // hidden.denominator)[order]
    alone: list[int] = numpy.minimum.accumulate(paths).tolist()
    done: list[int] = list(accumulate(work[order].tolist()))
    heads = int(numpy.sort(forward[:, :last].sum(axis=1))[:pipelines].sum())
    whole: int = done[-1] + heads + pipelines * (last * hop + int(own[0, :last].sum()))
    whole += num_packs * min(int(own[:, 0].sum()), int(own[:, last].sum()))

    def is_enough(time: int) -> bool:
        held = waited = 0
        for _ in range(pipelines):
            place = min(bisect_right(done, held), len(done) - 1)
            room = time - idle[place]
            if hidden < 1:
                room = min(room, int((time - alone[place]) / (1 - hidden)))
            if room < 0:
                return False
            held, waited = held + room, waited + idle[place]
        return held >= done[-1] and pipelines * time >= whole + waited

    least, most = 0, 2 * (whole + sum(idle[:pipelines]) + max(alone))
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if is_enough(middle) else (middle + 1, most)
    return least


def _hidden_part(forward: Table, backward: Table, *, work: Table) -> Fraction:
    """Which part of a sequence's work on the first stage either direction takes, at most."""
    rows = zip(numpy.maximum(forward, backward).tolist(), work.tolist(), strict=True)
    return max((Fraction(longer, whole) for longer, whole in rows if whole), default=Fraction(1))


def _idle_per_forward(forward: Table, backward: Table, *, own: Table) -> Fraction:
    """What the longest pack costs at least, as a multiple of its forward on the first stage."""
    last = forward.shape[1] - 1
    ups = (*forward[:, 0].tolist(), int(own[0, 0]))
    backs = (*backward[:, :last].sum(axis=1).tolist(), int(own[1, :last].sum()))
    ratios = (Fraction(back, up) for up, back in zip(ups, backs, strict=True) if up)
    least: Fraction = min(ratios, default=Fraction(0)) - last
    return max(Fraction(0), least)


def fewest_packs(lengths: Sequence[int], cap: int) -> int:
    """Packs of so many tokens that there are at least: by all tokens, and by sequences that find no room beside others.

    For every size: what is longer than half a pack is apart, what is not smaller fills the room that these leave.
    """
    rising = sorted(lengths)
    sums = [0, *accumulate(rising)]
    middle = bisect_right(rising, cap // 2)
    most = max(-(-sums[-1] // cap), len(rising) - middle)
    for place in range(middle):
        fitting = bisect_right(rising, cap - rising[place])
        room = (fitting - middle) * cap - (sums[fitting] - sums[middle]) if fitting > middle else 0
        rest = sums[middle] - sums[place]
        most = max(most, len(rising) - middle + max(0, -(-(rest - room) // cap)))
    return most
