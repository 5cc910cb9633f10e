"""A lower bound on all packings by prices: what a pipeline can hold of long sequences while it waits for few of them.

In a time T a pipeline that is idle for I works for T - I. At least q(z, I) of that is in sequences shorter than z, if
it has one that is not (`pack_order`: the largest P(z, s) - s I over all s, as work). The rest holds whole sequences
only. So many packs as there are at most have so much work only if I is long enough (`forwards_per_idle`).

Let a sequence be worth the sum of prices of all levels z that it is not shorter than, per work. If all pipelines
together cannot hold as much worth as there is, no packing ends by T, whatever the prices. Pipelines are sorted by their
longest sequence: in the next one it reaches the first level of which those before cannot hold everything. Pipelines with
the longest ones hold no more than `pack_splits` says, either. Prices are found by trial: more for levels of which too
little is held.
"""

from math import ceil, inf
from typing import Any, NamedTuple

import numpy

from planner.bounds.listed.pack_order import PackFactors, Reals, forwards_per_idle, least_sums
from planner.bounds.listed.pack_splits import Held, Split, hold, most_worth, split_idle

Whole = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_LEVELS = 16
_IDLES = 100
_SUMS = 14
_TRIALS = 60
_AGAIN = 16
"""Trials after which the time is chosen anew."""
_RAISE = 0.002
_BEYOND, _LARGEST = 0.003, 3.0
"""How far prices are changed: until a time is refuted by so much, and at most by so many powers of e."""
_STEPS = 6
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
    longest: Reals
    """[N + 1] work of so many sequences at most."""
    split: Split
    pipelines: int


class _IdleLosses(NamedTuple):
    """Of a pipeline's time in G - 1 ranges of idle times: what it does not spend on sequences as long as a level."""

    left: Reals
    """[L, G - 1] at the least idle time."""
    right: Reals
    """[L, G - 1] at the largest one."""
    falls: Reals
    """[L, G - 1] the slope at the least one."""
    rises: Reals
    """[L, G - 1] the slope at the largest one: losses are convex."""
    widths: Reals
    """[G - 1]"""
    fits: numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
    """[L, G - 1] whether there is room for one sequence at least."""
    tops: Whole
    """Per pipeline: its longest sequence is not shorter than this level."""
    long: Held
    """Of pipelines with the longest sequences."""


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


def _levels(first: Whole, work: Whole, *, pipelines: int, factors: PackFactors, most: int, time: int) -> _Levels:
    order = numpy.argsort(-first, kind="stable")
    falling, done, count = first[order].astype(float), work[order].cumsum().astype(float), len(order)
    places = numpy.concatenate(
        [numpy.arange(min(count, pipelines + 1)), numpy.linspace(0, count - 1, _LEVELS).astype(int)]
    )
    longer = numpy.unique(falling[places])[::-1]
    held = numpy.searchsorted(-falling, -longer, side="right") - 1
    sums, least = least_sums(longer.tolist(), shortest=float(falling[-1]), factors=factors, steps=_SUMS)
    per_work = float((first / work).max())
    limit = float((first / work).min()) / forwards_per_idle(most, factors)
    begin = time * limit / (1 + limit)
    end = max(2 * begin, (factors.up + factors.down) * float(longer[0]))
    idle = numpy.unique(
        [begin, *numpy.geomspace(max(begin, 1e-3 * end), end, _IDLES // 3), *numpy.linspace(begin, end, _IDLES)]
    )
    lines = least[:, None, :] - idle[:, None] * sums
    best = lines.max(axis=2)
    shortest = numpy.minimum.accumulate(work[order])[held].astype(float)
    longest = numpy.concatenate([[0], numpy.sort(work)[::-1].cumsum()]).astype(float)
    few = shortest[: int((held < pipelines).sum())]
    split = split_idle(
        longer, shortest=few, longest=longest, own=float(falling[-1]), factors=factors, per_work=per_work
    )
    return _Levels(
        work=done[held],
        shortest=shortest,
        idle=idle,
        short=numpy.maximum(best, 0) / per_work,
        longest=longest,
        split=split,
        slope=numpy.where(best > 0, -sums[lines.argmax(axis=2)], 0) / per_work,
        pipelines=pipelines,
    )


def _raise(levels: _Levels, *, time: float) -> float:
    """The latest time that is refuted with prices that are found; `time` if there is none."""
    count = len(levels.work)
    shares = numpy.full(count, 0.1 / count)
    shares[-1] = 0.9
    begin, prices = time, shares / levels.work
    loss, latest, best, refuted = _losses(levels, time=time), 0.0, prices, prices
    late = begin
    for trial in range(1, _TRIALS + 1):
        held, rate = (0 * prices, inf) if loss is None else _held(loss, prices, time=time)
        lack = 1 - float((prices * held).sum())
        guess = time * (1 + lack / rate)
        if guess > latest:
            latest, best = guess, prices
        if lack > 0:
            late, refuted = time, prices
        elif trial % _AGAIN:
            prices = _changed(prices, held, levels=levels, lack=lack)
            continue
        time = max(latest, begin if lack <= 0 else time * (1 + _RAISE))
        prices, latest, loss = best, 0.0, _losses(levels, time=time)
    for found, prices in ((latest, best), (late, refuted)):
        for step in range(_STEPS):
            early = found * (1 - _RAISE * (2**step - 1) / 4)
            if early > begin and _is_refuted(levels, prices, time=early):
                return early
    return begin


def _changed(prices: Reals, held: Reals, *, levels: _Levels, lack: float) -> Reals:
    """More for levels of which too little is held: as much as would refute the time if all pipelines held the same."""
    missing, shares = numpy.clip(1 - held / levels.work, -1, 1), prices * levels.work
    spread = (shares * missing**2).sum() - (shares * missing).sum() ** 2
    changed = shares * numpy.exp(min(_LARGEST, (_BEYOND - lack) / max(spread, 1e-9)) * missing)
    return numpy.asarray(changed / changed.sum() / levels.work)


def _losses(levels: _Levels, *, time: float) -> _IdleLosses | None:
    """None where there is no room for the longest sequence."""
    idle, count = levels.idle, len(levels.work)
    left, right = idle[:-1] + levels.short[:, :-1], idle[1:] + levels.short[:, 1:]
    falls, rises = 1 + levels.slope[:, :-1], 1 + levels.slope[:, 1:]
    room = time - idle[:-1] - levels.short[:, 1:]
    fits = room >= levels.shortest[:, None]
    whole = numpy.clip(numpy.floor(room * (1 + _SAFE) / levels.shortest[:, None]), 0, len(levels.longest) - 1)
    whole = levels.longest[whole.astype(int)]
    few = whole <= time - numpy.maximum(left, right)
    left, right = numpy.where(few, time - whole, left), numpy.where(few, time - whole, right)
    falls, rises = numpy.where(few, 0, falls), numpy.where(few, 0, rises)
    room = numpy.minimum(room, whole)
    most = numpy.where(fits[:, None, :], room[None, :, :], -1).max(axis=2)
    long = hold(levels.split, time)
    few = len(long.most)
    most[:few, :few] = numpy.minimum(most[:few, :few], long.most)
    most[numpy.tril_indices(count, -1)] = 0
    if most[0, 0] < 0:
        return None
    most = numpy.maximum.accumulate(numpy.maximum(most, 0), axis=0)
    held, tops = numpy.zeros(count), []
    for _ in range(levels.pipelines):
        missing = numpy.nonzero(held < levels.work * (1 - _SAFE))[0]
        tops.append(int(missing[0]) if len(missing) else count - 1)
        held = held + most[tops[-1]]
    return _IdleLosses(left, right, falls, rises, numpy.diff(idle), fits, numpy.array(tops), long)


def _held(loss: _IdleLosses, prices: Reals, *, time: float) -> tuple[Reals, float]:
    """[L] what pipelines hold that hold most worth, not shorter than each level; and how much more worth in time."""
    value = prices[::-1].cumsum()[::-1]
    lost = (prices[:, None] * loss.right)[::-1].cumsum(axis=0)[::-1]
    lost[~loss.fits] = numpy.inf
    idle, most = lost.argmin(axis=1), value * time - lost.min(axis=1)
    worth, contents = most_worth(loss.long, prices)
    is_less = worth < most[: len(worth)]
    most[: len(worth)] = numpy.minimum(worth, most[: len(worth)])
    held, best, chosen = numpy.zeros(len(prices)), 0, []
    for level, each in enumerate(most.tolist()):
        best = level if each > most[best] else best
        chosen.append(best)
    taken = [chosen[top] for top in loss.tops]
    for level in taken:
        if level < len(worth) and is_less[level]:
            held[level:] += contents[level, level:]
        else:
            held[level:] += time - loss.right[level:, idle[level]]
    return held, time * float(value[taken].sum())


def _is_refuted(levels: _Levels, prices: Reals, *, time: float) -> bool:
    """Whether pipelines hold less worth than there is: between two idle times the tangents are below what is lost."""
    loss = _losses(levels, time=time)
    if loss is None:
        return True
    left, right, falls, rises = (
        (prices[:, None] * rows)[::-1].cumsum(axis=0)[::-1] for rows in (loss.left, loss.right, loss.falls, loss.rises)
    )
    bend = numpy.where(rises > falls, rises - falls, 1)
    meet = left + falls * (left - right + rises * loss.widths) / bend
    ends = numpy.minimum(left, right)
    least = numpy.where(falls >= 0, left, numpy.where(rises <= 0, right, numpy.minimum(meet, ends)))
    least[~loss.fits] = numpy.inf
    most = prices[::-1].cumsum()[::-1] * time - least.min(axis=1)
    worth, _ = most_worth(loss.long, prices)
    most[: len(worth)] = numpy.minimum(worth, most[: len(worth)])
    most = numpy.maximum.accumulate(most)
    return bool(most[loss.tops].sum() < (prices * levels.work).sum() * (1 - _SAFE))
