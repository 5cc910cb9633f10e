"""Actions whose order is given, each listed after what it waits for, where transfers have their links to themselves.

What `evaluator.play` says of such orders, without events. Plain Python, since trainers deal microbatches between steps
and runs are replayed where there is no compiler.
"""

from collections.abc import Sequence
from typing import NamedTuple


class OrderedSteps(NamedTuple):
    """A actions; who waits for several others is a chain of them, the first with the gap, the last with the ticks."""

    device: Sequence[int]
    """[A] who runs it."""
    source: Sequence[int]
    """[A] the action that it waits for, or -1."""
    lag: Sequence[int]
    """[A] ticks from the end of that until it is there."""
    gap: Sequence[int]
    """[A] ticks that the device takes before it."""


def play_in_order(steps: OrderedSteps, ticks: Sequence[int]) -> list[int]:
    """[A] when actions end that take so many ticks, every device free from 0 on."""
    free, ends = [0] * (max(steps.device, default=0) + 1), list[int]()
    for device, source, lag, gap, time in zip(*steps, ticks, strict=True):
        begin = free[device] + gap
        if source >= 0 and ends[source] + lag > begin:
            begin = ends[source] + lag
        free[device] = begin + time
        ends.append(begin + time)
    return ends
