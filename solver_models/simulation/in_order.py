"""Actions whose order is given, each listed after what it waits for, where transfers have their links to themselves.

What `evaluator.play` says of such orders, without events. Plain Python, since trainers deal microbatches between steps
and runs are replayed where there is no compiler; kernels call the same function compiled.
"""

from collections.abc import Sequence
from inspect import unwrap
from typing import NamedTuple

from solver_models.compiled import kernel
from solver_models.instance import Integers, ShortIntegers


class OrderedSteps(NamedTuple):
    """A actions; who waits for several others is a chain of them, the first with the gap, the last with the ticks."""

    device: Sequence[int] | ShortIntegers
    """[A] who runs it."""
    source: Sequence[int] | ShortIntegers
    """[A] the action that it waits for, or -1."""
    lag: Sequence[int] | Integers
    """[A] ticks from the end of that until it is there."""
    gap: Sequence[int] | Integers
    """[A] ticks that the device takes before it."""


@kernel
def run_in_order(
    steps: OrderedSteps, ticks: Sequence[int] | Integers, free: list[int] | Integers, ends: list[int] | Integers
) -> None:
    """Write when actions end that take so many ticks; `free` [D]: when their devices are."""
    rows = zip(steps.device, steps.source, steps.lag, steps.gap, ticks)  # noqa: B905 (no kernel can be strict)
    for number, (device, source, lag, gap, time) in enumerate(rows):
        begin = free[device] + gap
        if source >= 0 and ends[source] + lag > begin:
            begin = ends[source] + lag
        free[device] = ends[number] = begin + time


def play_in_order(steps: OrderedSteps, ticks: Sequence[int]) -> list[int]:
    """[A] when actions end that take so many ticks, every device free from 0 on."""
    ends = [0] * len(ticks)
    unwrap(run_in_order)(steps, ticks, [0] * (max(steps.device, default=0) + 1), ends)
    return ends
