"""Samples for the replicas of a stage: whole numbers with a given sum, so that the longest time is as short as it gets.

Exact for any times: they need not grow with the number of samples, and some numbers may not be allowed. For a limit on
the times, the sums that the first k replicas can reach are the bits of an integer; the least limit at which the total
is reached is found by bisection over the times that there are.
"""

from collections.abc import Sequence

Times = Sequence[Sequence[int | None]]
"""[replica][samples] time of a replica with so many samples, from none on; None: not allowed."""


def shortest_shares(times: Times, *, total: int) -> tuple[int, ...] | None:
    """Samples per replica, `total` in all, with the least longest time; None if no allowed numbers add up to it."""
    limits = sorted({time for row in times for time in row if time is not None})
    first, last = 0, len(limits)
    while first < last:
        middle = (first + last) // 2
        if _reached(times, limit=limits[middle])[-1] >> total & 1:
            last = middle
        else:
            first = middle + 1
    return None if first == len(limits) else _chosen(times, limit=limits[first], total=total)


def _reached(times: Times, *, limit: int) -> list[int]:
    """Per number of replicas, from none on: the sums that the first of them can have, as bits."""
    found = [1]
    for row in times:
        sums = 0
        for samples in _allowed(row, limit=limit):
            sums |= found[-1] << samples
        found.append(sums)
    return found


def _allowed(row: Sequence[int | None], *, limit: int) -> list[int]:
    return [samples for samples, time in enumerate(row) if time is not None and time <= limit]


def _chosen(times: Times, *, limit: int, total: int) -> tuple[int, ...]:
    """Numbers whose sum is reached, from the last replica to the first; of several the one that takes least time."""
    reached, left, found = _reached(times, limit=limit), total, list[int]()
    for number in reversed(range(len(times))):
        row = times[number]
        fits = [n for n in _allowed(row, limit=limit) if n <= left and reached[number] >> (left - n) & 1]
        found.append(min(fits, key=lambda n: (row[n] or 0, n)))
        left -= found[-1]
    return tuple(reversed(found))
