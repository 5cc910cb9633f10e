"""The search for the largest value that a test still rules out."""

from collections.abc import Callable

from planner.clock import HasTime, always

REFUTED_NS = 2**53
"""No deadline beyond it is tried: where this one is out of reach, later ones are no help."""


def next_above(low: int, stride: int) -> int:
    """The next deadline to try where none is known that can be met; `low` itself where there is none to try."""
    return max(low, min(low + stride, REFUTED_NS))


def largest_refuted(
    is_out: Callable[[int], bool], start: int, *, steps: int, has_time: HasTime = always, reached: int | None = None
) -> int:
    """The largest T + 1 with T found out of reach, at least `start`, in so many steps: doubled strides, then halves.

    It ends before where there is no time for another step, and where T reaches `REFUTED_NS`. Where a plan has
    `reached`, this is tried first: it is all that is worth proving.
    """
    low, stride, high = start - 1, max(start // 64, 1), None
    if steps < 3 or not has_time() or not is_out(low):
        return start
    if reached is not None and reached > start:
        if is_out(reached - 1):
            return reached
        high = reached - 1
    asks_nearest = True
    for left in reversed(range(steps - 1)):
        middle = next_above(low, stride) if high is None else (low + high) // 2
        if middle == low or not has_time():
            break
        if is_out(middle):
            low, stride, asks_nearest = middle, 2 * stride, False
            continue
        high = middle
        if asks_nearest and (nearest := _nearest(low, high, steps=left)) < high and not is_out(nearest):
            break
        asks_nearest = False
    return low + 1


def _nearest(low: int, high: int, *, steps: int) -> int:
    """The last value that so many halves would ask for if none were out of reach; if it is not, none of them is."""
    for _ in range(steps):
        high = max((low + high) // 2, low + 1)
    return high
