"""A lower bound on all packings by prices: what a pipeline can hold of long sequences while it waits for few of them.

In a time T a pipeline that is idle for I works for T - I. At least q(z, I) of that is in sequences shorter than z, if
it has one that is not (`pack_order`: the largest P(z, s) - s I over all s, as work). The rest holds whole sequences
only. So many packs as there are at most have so much work only if I is long enough (`forwards_per_idle`).

Let a sequence be worth the sum of prices of all levels z that it is not shorter than, per work. If all pipelines
together cannot hold as much worth as there is, no packing ends by T, whatever the prices. Pipelines are sorted by their
longest sequence: in the next one it reaches the first level of which those before cannot hold everything. Prices are
found by trial: more for levels of which too little is held.

I is in some range, whose ends say what is lost there. For pipelines with the longest sequences both of its parts are in
ranges: before the first pack that is not shorter than their longest level, and from it on (`least_beside`).
"""

from math import ceil, inf
from typing import Any, NamedTuple

import numpy

from planner.bounds.listed.pack_order import PackFactors, Reals, forwards_per_idle, least_beside, least_sums
from planner.bounds.listed.packed_sequences import Table

_LEVELS = 16
"""With as much work between each two, beside those of the longest sequences."""
_IDLES = 240
_BEFORE, _BEHIND = 32, 64
"""Ranges of both parts of the idle time."""
_SUMS = 14
_TRIALS = 60
_AGAIN = 16
"""Trials after which the time is chosen anew."""
_RAISE = 0.002
_BEYOND, _LARGEST = 0.003, 3.0
"""More for levels of which too little is held: until a time is refuted by so much, at most by so many powers of e."""
_SAFE = 1e-9
"""Of rounding."""


class _Ranges(NamedTuple):
    """G ranges of idle time, for L levels, of which pipelines reach one of the first M."""

    lost: Reals
    """[L, G] of the time, what is not spent on sequences as long as a level, at least."""
    shortest: Reals
    """[M] the least work of a sequence that is not shorter than the level."""
    longest: Reals
    """[N + 1] work of so many sequences at most."""


class _Levels(NamedTuple):
    """L levels of sequences, from long to short."""

    work: Reals
    """[L] of sequences that are not shorter."""
    every: _Ranges
    """Of pipelines with any of them."""
    long: _Ranges
    """Of those with the longest, by both parts of the idle time."""
    pipelines: int


class _HeldWork(NamedTuple):
    """What a pipeline holds in a time, at most."""

    work: Reals
    """[L, G] not shorter than each level."""
    misfits: numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
    """[M, G] whether there is no room for a sequence of a level."""
    most: Reals
    """[M, M] of every level, in a pipeline with a sequence of the first one; below 0 without room."""


_Rooms = tuple[_HeldWork, _HeldWork, list[int]]


def bound_by_prices(
    forward: Table, backward: Table, *, own: Table, packs: tuple[int, int], pipelines: int, hop: int, time: int
) -> int:
    """No packing ends before; times as of `bound_packs`.

    `packs`: of every pipeline at least and at most. `hop`: of a transfer there and back; `time`: a bound that is known.
    """
    last = forward.shape[1] - 1
    first, loads = forward[:, 0], forward + backward
    work = numpy.minimum(loads[:, 0], loads[:, last])
    if last < 1 or not first.min() or not work.min():
        return time
    factors = PackFactors(
        up=float((forward[:, :last].sum(axis=1) / first).min()),
        down=float((backward[:, :last].sum(axis=1) / first).min()),
        hidden=float((backward[:, 0] / first).max()),
        others=last,
    )
    if not (factors.up and factors.down and factors.hidden):
        return time
    beside = packs[0] * int(min(own[:, 0].sum(), own[:, last].sum())) + last * hop
    beside -= max(0, last * int(own[:, 0].sum()) - int(own[:, :last].sum()))
    room = max(time - beside, 0)
    levels = _levels(first, work, pipelines=pipelines, factors=factors, most=packs[1], time=room)
    raised: int = ceil(_raise(levels, time=float(room)) * (1 - _SAFE) + beside - 1e-6)
    return max(time, raised)


def _levels(first: Table, work: Table, *, pipelines: int, factors: PackFactors, most: int, time: int) -> _Levels:
    order = numpy.argsort(-first, kind="stable")
    falling, done, count = first[order].astype(float), work[order].cumsum().astype(float), len(order)
    shares = numpy.searchsorted(done, done[-1] * numpy.linspace(0, 1, _LEVELS)[1:-1])
    places = numpy.concatenate([numpy.arange(min(count, pipelines + 1)), shares, [count - 1]])
    longer = numpy.unique(falling[places])[::-1]
    held = numpy.searchsorted(-falling, -longer, side="right") - 1
    per_work, own = float((first / work).max()), float(falling[-1])
    sums, least = least_sums(longer.tolist(), shortest=own, factors=factors, steps=_SUMS)
    limit = float((first / work).min()) / forwards_per_idle(most, factors)
    begin = time * limit / (1 + limit)
    end = max(2 * begin, (factors.up + factors.down) * float(longer[0]))
    idle = numpy.unique(
        [begin, *numpy.geomspace(max(begin, 1e-3 * end), end, _IDLES // 3), *numpy.linspace(begin, end, _IDLES)]
    )
    short = numpy.maximum((least[:, None, :] - idle[:, None] * sums).max(axis=2), 0) / per_work
    parts = []
    for per, factor, ranges in ((factors.hidden, factors.up, _BEFORE), (1.0, factors.down, _BEHIND)):
        part = factor * numpy.linspace(own, float(longer[0]), ranges + 1)
        beside = least_beside(longer, part, per=per, factor=factor, others=factors.others) / per_work
        parts.append(part[:-1] + beside[:, 1:])
    lost = (parts[0][:, :, None] + parts[1][:, None, :]).reshape(len(longer), -1)
    shortest = numpy.minimum.accumulate(work[order])[held].astype(float)
    longest = numpy.concatenate([[0], numpy.sort(work)[::-1].cumsum()]).astype(float)
    few = int((held < pipelines).sum())
    return _Levels(
        work=done[held],
        every=_Ranges(idle[:-1] + short[:, 1:], shortest, longest),
        long=_Ranges(lost, shortest[:few], longest),
        pipelines=pipelines,
    )


def _raise(levels: _Levels, *, time: float) -> float:
    """The latest time that is refuted with prices that are found; `time` if there is none."""
    shares = numpy.ones(len(levels.work))
    shares[-1] = 9 * len(shares)
    shares /= shares.sum()
    begin, late, latest, best, rooms = time, time, 0.0, shares, _rooms(levels, time=time)
    for trial in range(1, _TRIALS + 1):
        held, rate = _held(rooms, shares / levels.work, time=time)
        held /= levels.work
        lack = 1 - float((shares * held).sum())
        if time * (1 + lack / rate) > latest:
            latest, best = time * (1 + lack / rate), shares
        if lack > _SAFE:
            late = max(late, time)
        elif trial % _AGAIN:
            missing = numpy.clip(1 - held, -1, 1)
            spread = (shares * missing**2).sum() - (shares * missing).sum() ** 2
            shares = shares * numpy.exp(min(_LARGEST, (_BEYOND - lack) / max(spread, _SAFE)) * missing)
            shares /= shares.sum()
            continue
        time = max(latest, begin if lack <= 0 else time * (1 + _RAISE))
        shares, latest, rooms = best, 0.0, _rooms(levels, time=time)
    return late


def _rooms(levels: _Levels, *, time: float) -> _Rooms | None:
    """Of every pipeline, and of the longest sequences'; and what level each reaches. None: no room for the longest."""
    every, long = _hold(levels.every, time), _hold(levels.long, time)
    few = len(long.most)
    most = numpy.triu(every.most)
    most[:few, :few] = numpy.minimum(most[:few, :few], numpy.triu(long.most))
    if most[0, 0] < 0:
        return None
    most = numpy.maximum.accumulate(numpy.maximum(most, 0), axis=0)
    held, tops = numpy.zeros(len(most)), list[int]()
    for _ in range(levels.pipelines):
        missing = numpy.nonzero(held < levels.work * (1 - _SAFE))[0]
        tops.append(int(missing[0]) if len(missing) else len(most) - 1)
        held = held + most[tops[-1]]
    return every, long, tops


def _hold(ranges: _Ranges, time: float) -> _HeldWork:
    count, least = len(ranges.shortest), ranges.shortest[:, None]
    work = time - ranges.lost
    long = work[:count]
    whole = numpy.clip(numpy.floor(long * ((1 + _SAFE) / least)), 0, len(ranges.longest) - 1).astype(int)
    numpy.minimum(long, ranges.longest[whole], out=long)
    numpy.maximum(work, 0, out=work)
    misfits = whole < 1
    return _HeldWork(work, misfits, numpy.array([numpy.where(misfit, -1, long).max(axis=1) for misfit in misfits]))


def _held(rooms: _Rooms | None, prices: Reals, *, time: float) -> tuple[Reals, float]:
    """[L] what pipelines hold that hold most worth, not shorter than each level; and how their worth grows in time."""
    if rooms is None:
        return 0 * prices, inf
    (most, contents), (fewer, others) = (_most_value(each, prices) for each in rooms[:2])
    for level, value in enumerate(fewer):
        if value < most[level]:
            most[level], contents[level] = value, others[level]
    rates, best, chosen = prices[::-1].cumsum()[::-1], 0, []
    for level, value in enumerate(most):
        best = level if value > most[best] else best
        chosen.append(best)
    taken = [chosen[top] for top in rooms[2]]
    return numpy.sum([contents[level] for level in taken], axis=0), time * float(rates[taken].sum())


def _most_value(held: _HeldWork, prices: Reals) -> tuple[list[float], list[Reals]]:
    """Of a pipeline by its longest level the most worth, -inf without room, and [L] what it holds then."""
    count = len(held.misfits)
    rows = numpy.triu(numpy.broadcast_to(prices, (count, len(prices))))
    values = rows @ held.work
    values[held.misfits] = -inf
    best = values.argmax(axis=1)
    contents = numpy.where(rows > 0, held.work[:, best].T, 0)
    return values[numpy.arange(count), best].tolist(), list(contents)
