"""A lower bound on every dealing to pipelines that run 1F1B: how long the last stage waits for the one before it.

Under 1F1B the stage before the last runs F(i + 1) only after the backward of i - 1, and the last stage starts i at most
one transfer after that backward begins: i waits for F(i), which ran before it, and for i - 1, which it waited for. So
the last stage starts i + 1 no sooner than max(own work of i, that backward + F(i + 1)) after it starts i. What exceeds
its own work is its idle time: a long microbatch ahead of a short one costs some, and so does a run of microbatches
which take the stage before longer than the last.

Over all dealings, each microbatch gets a price of 0 or more. The costs are walks through microbatches: over q pipelines
they cost at least all prices plus q times the cheapest walk less prices.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from planner.bounds.listed.dealt_microbatches import Rows

Table = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
"""Of times."""

_MOST_CLASSES = 24
"""Microbatches are distinguished by so many classes of like length. Measured on SE: 40 raise the bound by 0.1 %."""

MOST_ROUNDS = 40
"""Of looking for the cheapest walk; where a cycle costs less than nothing no number is enough. Measured: up to 12."""

_CLIMBS = 6
"""Halvings of the step by which a price is raised. Measured on SE: the sixth still brings 0.02 %."""

TOO_LONG = 1 << 60
"""Nothing is said of times whose sum is larger: 64 bits would not hold them."""


class _Classes(NamedTuple):
    """Microbatches in order of their length, put together into C classes; each has its least times, or its largest."""

    counts: Table
    """[C] members."""
    begin: Table
    """[C, C] until the last stage has begun a pipeline's first microbatch, and its wait behind it for the second."""
    step: Table
    """[C, C, C] wait behind a microbatch: by the one before it, itself, the one after it."""
    end: Table
    """[C, C] wait behind the last microbatch and what follows: by the one before it, itself."""
    alone: Table
    """[C] of a pipeline's only microbatch all but its own time."""
    work: int
    """What the last stage computes for all, less what `begin`, `end` and `alone` count too much in all."""
    pipelines: int
    """Most pipelines with work."""


def bound_last_stage(forward: Rows, backward: Rows, *, pipelines: int, transfer_ns: int = 0) -> int:
    """No dealing ends before if every pipeline runs 1F1B.

    The one that is first or last in its pipeline counts at least what the `pipelines`-th least would, and is given back
    the difference; so firsts are different microbatches, and lasts. Every order of any microbatches, again and again
    the same if need be, waits at least as long as the cheapest walk through classes. Any price may be put on
    microbatches of some classes: all of them are in some pipeline, and no pipeline is cheaper than the cheapest walk at
    that price.
    """
    if not forward or len(forward[0]) < 2 or sum(map(sum, forward)) + sum(map(sum, backward)) > TOO_LONG:
        return 0
    classes = _classify(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns)
    free = numpy.zeros(len(classes.counts), dtype=numpy.int64)
    most = _at_price(classes, free) or 0
    own = numpy.einsum("iii->i", classes.step)
    for first in _suffixes(classes):
        limit = int(own[first:].min())  # at more, a run of the same costs less than nothing
        most = max(most, _raise_bound(classes, first=first, limit=limit, least=most)) if limit else most
    return most


def _raise_bound(classes: _Classes, *, first: int, limit: int, least: int) -> int:
    """The best found for one price on all classes from `first` on; the bound is concave in it."""
    best, at, step = least, 0, limit / 2
    for _ in range(_CLIMBS):
        for price in (at + round(step), at - round(step)):
            prices = numpy.zeros(len(classes.counts), dtype=numpy.int64)
            prices[first:] = price
            if 0 < price <= limit and (found := _at_price(classes, prices) or 0) > best:
                best, at = found, price
                break
        step /= 2
    return best


def _suffixes(classes: _Classes) -> Iterator[int]:
    """Where the longest begin: those of about a quarter as many as pipelines, of two quarters, and so on."""
    behind = numpy.cumsum(classes.counts[::-1])
    yield from {
        len(behind) - 1 - int(numpy.searchsorted(behind, min(quarters * classes.pipelines / 4, behind[-1])))
        for quarters in range(1, 9)
    }


def _at_price(classes: _Classes, prices: Table) -> int | None:
    """The bound with these prices on microbatches; None where the cheapest walk is not found."""
    step, paths = classes.step - prices[None, :, None], classes.end - prices[None, :]
    for _ in range(MOST_ROUNDS):
        further = numpy.minimum(paths, (step + paths[None, :, :]).min(axis=2))
        if (further == paths).all():
            break
        paths = further
    else:
        return None
    work = classes.work + int((prices * classes.counts).sum())
    walk = min(int((classes.begin - prices[:, None] + paths).min()), int((classes.alone - prices).min()))
    return -(-work // classes.pipelines) + walk if work >= 0 else None


def _classify(forward: Rows, backward: Rows, *, pipelines: int, transfer_ns: int) -> _Classes:
    last = len(forward[0]) - 1
    around = last * transfer_ns
    f, b = (numpy.array([row[last - 1] for row in rows], dtype=numpy.int64) for rows in (forward, backward))
    own = numpy.array([up[last] + down[last] for up, down in zip(forward, backward, strict=True)], dtype=numpy.int64)
    heads, tails = (
        numpy.array([sum(row[:last]) + around for row in rows], dtype=numpy.int64) for rows in (forward, backward)
    )
    used = min(pipelines, len(forward))
    usual = [int(numpy.sort(row)[used - 1]) for row in (heads, tails)]
    too_much = sum(int(numpy.maximum(0, one - row).sum()) for one, row in zip(usual, (heads, tails), strict=True))
    members = _split(f + b + own)

    def least(row: Table) -> Table:
        return numpy.array([row[each].min() for each in members])

    f, b, longest = least(f), least(b), numpy.array([own[each].max() for each in members])
    heads, tails = (numpy.maximum(least(row), one) for row, one in zip((heads, tails), usual, strict=True))
    return _Classes(
        counts=numpy.array([len(each) for each in members], dtype=numpy.int64),
        begin=heads[:, None] + numpy.maximum(0, f[None, :] - longest[:, None]),
        step=numpy.maximum(0, b[:, None, None] + f[None, None, :] - longest[None, :, None]),
        end=tails[None, :] + numpy.maximum(0, b[:, None] - 2 * transfer_ns - longest[None, :]),
        alone=heads + tails,
        work=int(own.sum()) - too_much,
        pipelines=used,
    )


def _split(lengths: Table) -> Sequence[Table]:
    """Places in order of length, in classes; again and again the class whose lengths differ most is halved."""
    order = numpy.argsort(lengths, kind="stable")
    parts = [order]
    while len(parts) < _MOST_CLASSES:
        widths = [int(lengths[part[-1]] - lengths[part[0]]) for part in parts]
        widest = max(range(len(parts)), key=widths.__getitem__)
        if not widths[widest]:
            break
        part = lengths[parts[widest]]
        middle = int(numpy.searchsorted(part, part[0] + (widths[widest] + 1) // 2))
        parts[widest : widest + 1] = [parts[widest][:middle], parts[widest][middle:]]
    return parts
