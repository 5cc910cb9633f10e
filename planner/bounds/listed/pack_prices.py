"""A lower bound on all packings by prices: what a pipeline can hold of long sequences while it waits for few of them.

In a time T a pipeline that is idle for I does work of T - I. At least q(z, I) of it is in sequences shorter than z, if it
has one that is not (`pack_order`: the largest (P(z, s) - s I) over all s, as work). Let a sequence of z or longer be
worth the sum of prices of all levels of at most z, per work. If pipelines cannot hold as much worth as there is, no
packing ends by T; whatever the prices. Pipelines are sorted by their longest sequence: of the next one it is at least as
long as all levels that those before cannot hold. Prices are found by trial: more of those of which too little is held.
"""

from math import ceil
from typing import Any, NamedTuple

import numpy

from planner.bounds.listed.pack_order import Reals, Ways, forwards_per_idle, least_sums

Whole = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_LEVELS = 16
_IDLES = 100
_SUMS = 14
_TRIALS = 60
_RAISE = 1.002
_SAFE = 1e-9
"""Of rounding."""


class _Levels(NamedTuple):
    """L levels of sequences, from long to short, and G idle times, rising."""

    work: Reals
    """[L] of sequences that are not shorter."""
    shortest: Reals
    """[L] the least work of one of these."""
    idle: Reals
    """[G]"""
    short: Reals
    """[L, G] work of shorter sequences in a pipeline with one that is not shorter, at least."""
    slope: Reals
    """[L, G] of it, over idle."""
    pipelines: int


def bound_by_prices(
    forward: Whole, backward: Whole, *, own: Whole, packs: tuple[int, int], pipelines: int, hop: int, time: int
) -> int:
    """No packing ends before; times as of `bound_packs`.

    `packs`: of every pipeline at least and at most. `hop`: of a transfer there and back; `time`: a bound that is known.
    """
    last = forward.shape[1] - 1
    first, loads = forward[:, 0], forward + backward
    work = numpy.minimum(loads[:, 0], loads[:, last])
    if last < 1 or not first.min() or not work.min():
        return time
    ways = Ways(
        up=float((forward[:, :last].sum(axis=1) / first).min()),
        down=float((backward[:, :last].sum(axis=1) / first).min()),
        hidden=float((backward[:, 0] / first).max()),
        others=last,
    )
    if not (ways.up and ways.down and ways.hidden):
        return time
    beside = packs[0] * int(min(own[:, 0].sum(), own[:, last].sum())) + last * hop
    beside -= max(0, last * int(own[:, 0].sum()) - int(own[:, :last].sum()))
    room = max(time - beside, 0)
    levels = _levels(first, work, pipelines=pipelines, ways=ways, most=packs[1], time=room)
    return max(time, ceil(_raise(levels, time=float(room)) * (1 - _SAFE) + beside - 1e-6))


def _levels(first: Whole, work: Whole, *, pipelines: int, ways: Ways, most: int, time: int) -> _Levels:
    order = numpy.argsort(-first, kind="stable")
    falling, done, count = first[order].astype(float), work[order].cumsum().astype(float), len(order)
    places = numpy.concatenate(
        [numpy.arange(min(count, pipelines + 1)), numpy.linspace(0, count - 1, _LEVELS).astype(int)]
    )
    longer = numpy.unique(falling[places])[::-1]
    held = numpy.searchsorted(-falling, -longer, side="right") - 1
    sums, least = least_sums(longer.tolist(), shortest=float(falling[-1]), ways=ways, steps=_SUMS)
    per_work = float((first / work).max())
    limit = float((first / work).min()) / forwards_per_idle(most, ways)
    begin = time * limit / (1 + limit)
    end = max(2 * begin, (ways.up + ways.down) * float(longer[0]))
    idle = numpy.unique(
        [begin, *numpy.geomspace(max(begin, 1e-3 * end), end, _IDLES // 3), *numpy.linspace(begin, end, _IDLES)]
    )
    lines = least[:, None, :] - idle[:, None] * sums
    best = lines.max(axis=2)
    return _Levels(
        work=done[held],
        shortest=numpy.minimum.accumulate(work[order])[held].astype(float),
        idle=idle,
        short=numpy.maximum(best, 0) / per_work,
        slope=numpy.where(best > 0, -sums[lines.argmax(axis=2)], 0) / per_work,
        pipelines=pipelines,
    )


def _raise(levels: _Levels, *, time: float) -> float:
    """The latest time that is refuted with prices that are found; `time` if there is none."""
    count = len(levels.work)
    shares = numpy.full(count, 0.1 / count)
    shares[-1] = 0.9
    prices, refuting, begin = shares / levels.work, None, time
    for trial in range(_TRIALS):
        held = _held(levels, prices, time=time)
        if held is None or (prices * (levels.work - held)).sum() > 0:
            refuting, time = prices, time * _RAISE
            continue
        step = 1.5 / (1 + trial / 10)
        prices = prices * numpy.exp(step * numpy.clip(1 - held / levels.work, -1, 1))
        prices /= (prices * levels.work).sum()
    if refuting is None:
        return begin
    low, high = begin, time
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _is_refuted(levels, refuting, time=middle) else (low, middle)
    return low


def _holding(levels: _Levels, *, time: float) -> tuple[Reals, Whole] | None:
    """[L, G - 1] which idle times leave room for the longest sequence; per pipeline the last level that is its longest.

    None where there is no such time.
    """
    count = len(levels.work)
    room = time - levels.idle[:-1] - levels.short[:, 1:]
    fits = room >= levels.shortest[:, None]
    most = numpy.where(fits[:, None, :], room[None, :, :], -1).max(axis=2)
    most[numpy.tril_indices(count, -1)] = 0
    if most[0, 0] < 0:
        return None
    most = numpy.maximum.accumulate(numpy.maximum(most, 0), axis=0)
    held, longest = numpy.zeros(count), []
    for _ in range(levels.pipelines):
        missing = numpy.nonzero(held < levels.work * (1 - _SAFE))[0]
        longest.append(int(missing[0]) if len(missing) else count - 1)
        held = held + most[longest[-1]]
    return fits, numpy.array(longest)


def _held(levels: _Levels, prices: Reals, *, time: float) -> Reals | None:
    """[L] what pipelines hold that hold most worth, not shorter than each level; None where nothing fits."""
    holding = _holding(levels, time=time)
    if holding is None:
        return None
    fits, longest = holding
    worth = prices[::-1].cumsum()[::-1]
    lost = worth[:, None] * levels.idle[1:] + (prices[:, None] * levels.short[:, 1:])[::-1].cumsum(axis=0)[::-1]
    lost[~fits] = numpy.inf
    idle, most = lost.argmin(axis=1), worth * time - lost.min(axis=1)
    held, best = numpy.zeros(len(prices)), 0
    chosen = [best := max(best, level, key=most.__getitem__) for level in range(len(prices))]
    for level in (chosen[place] for place in longest):
        held[level:] += time - levels.idle[1 + idle[level]] - levels.short[level:, 1 + idle[level]]
    return held


def _is_refuted(levels: _Levels, prices: Reals, *, time: float) -> bool:
    """Whether pipelines hold less worth than there is: between two idle times the tangents are below what is lost."""
    holding = _holding(levels, time=time)
    if holding is None:
        return True
    fits, longest = holding
    worth = prices[::-1].cumsum()[::-1]
    lost, slope = (
        each + (prices[:, None] * rows)[::-1].cumsum(axis=0)[::-1]
        for each, rows in ((worth[:, None] * levels.idle, levels.short), (worth[:, None], levels.slope))
    )
    left, right, falls, rises = lost[:, :-1], lost[:, 1:], slope[:, :-1], slope[:, 1:]
    bend = numpy.where(rises > falls, rises - falls, 1)
    meet = left + falls * (right - left - rises * numpy.diff(levels.idle)) / bend
    least = numpy.where(
        falls >= 0, left, numpy.where(rises <= 0, right, numpy.minimum(meet, numpy.minimum(left, right)))
    )
    least[~fits] = numpy.inf
    most = numpy.maximum.accumulate(worth * time - least.min(axis=1))
    return bool(most[longest].sum() < (prices * levels.work).sum() * (1 - _SAFE))
