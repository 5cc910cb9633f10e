"""What pipelines with the longest sequences hold: their idle time is before the longest pack, or behind it.

`pack_order` has the proof. Both parts of the idle time are known to lie in ranges; in each pair of ranges a pipeline
holds so much of every level at most, in whole sequences of the longest ones.
"""

from typing import NamedTuple

import numpy

from planner.bounds.listed.pack_order import PackFactors, Reals, least_beside

_BEFORE = 32
_BEHIND = 64
_SAFE = 1e-9
"""Of rounding."""


class Split(NamedTuple):
    """The longest M of L levels, and G pairs of ranges of idle time."""

    lost: Reals
    """[L, G] of the time, what is not spent on sequences as long as a level, at least."""
    shortest: Reals
    """[M] the least work of a sequence that is not shorter than the level."""
    longest: Reals
    """[N + 1] work of so many sequences at most."""


class Held(NamedTuple):
    """What a pipeline holds in a time."""

    work: Reals
    """[L, G] not shorter than each level."""
    misfits: numpy.ndarray[tuple[int, int], numpy.dtype[numpy.bool_]]
    """[M, G] whether there is no room for a sequence of a level."""
    most: Reals
    """[M, M] of every level, in a pipeline with a sequence of the first one; below 0 without room."""


def split_idle(
    longer: Reals, *, shortest: Reals, longest: Reals, own: float, factors: PackFactors, per_work: float
) -> Split:
    """By forwards of each level on the first stage, `own` of the shortest sequence, and forwards `per_work`."""
    sides = []
    for per, factor, count in ((factors.hidden, factors.up, _BEFORE), (1.0, factors.down, _BEHIND)):
        idle = factor * numpy.linspace(own, float(longer[0]), count + 1)
        short = least_beside(longer, idle, per=per, factor=factor, others=factors.others) / per_work
        sides.append(idle[:-1] + short[:, 1:])
    lost = (sides[0][:, :, None] + sides[1][:, None, :]).reshape(len(longer), -1)
    return Split(lost, shortest, longest)


def hold(split: Split, time: float) -> Held:
    """What there is room for in so much time."""
    count = len(split.shortest)
    work = time - split.lost
    long, least = work[:count], split.shortest[:, None]
    whole = numpy.clip(numpy.floor(long * ((1 + _SAFE) / least)), 0, len(split.longest) - 1)
    numpy.minimum(long, split.longest[whole.astype(int)], out=long)
    misfits = whole < 1
    numpy.maximum(work, 0, out=work)
    most = numpy.array([numpy.where(misfit, -1, long).max(axis=1) for misfit in misfits])
    return Held(work, misfits, most)


def most_worth(held: Held, prices: Reals) -> tuple[Reals, Reals]:
    """[M] the worth of a pipeline by its longest level, -inf without room; and [M, L] what it holds then."""
    count = len(held.misfits)
    worth = numpy.triu(numpy.broadcast_to(prices, (count, len(prices)))) @ held.work
    worth[held.misfits] = -numpy.inf
    best = worth.argmax(axis=1)
    return worth[numpy.arange(count), best], held.work[:, best].T
