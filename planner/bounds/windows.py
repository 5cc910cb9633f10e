"""The windows bound: stages and devices are given; suppose that some order ends by T, and look for a contradiction.

Whatever ends by T leaves every action a window, from its head to T less its tail. Two actions of one device never
overlap: where the one cannot come first without leaving its window or the other's, it comes second, and that raises
its head and the tail of the other. Repeated until nothing changes, this empties a window if T is too early.
"""

from itertools import product

import numpy

from planner.bounds.least import Integers
from planner.bounds.schedule import Times, bound_of_times
from planner.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

MAX_PASSES = 60
"""Passes over all pairs; each leaves valid windows."""

MAX_PAIRS = 4_000_000
"""Most pairs of actions that one pass looks at."""


class Windows(Times):
    """Heads and tails of every action of every order that ends by the deadline."""

    def __init__(self, times: Times, deadline: int) -> None:
        """`deadline`: end of the last synchronisation, in nanoseconds."""
        for name, value in vars(times).items():
            setattr(self, name, value.copy() if isinstance(value, numpy.ndarray) else value)
        self.deadline = deadline

    def is_empty(self) -> bool:
        """Whether no order can end by the deadline."""
        for _ in range(MAX_PASSES):
            before = self._state()
            for numbers in self.partners.on.values():
                self._order(numbers)
            self._pass()
            if self._is_crossed():
                return True
            if self._state() == before:
                break
        return bound_of_times(self) > self.deadline

    def _is_crossed(self) -> bool:
        """Whether a head and a tail leave no room for their action."""
        forward = (self.forward_end + self.forward_tail[:, ::-1]).max()
        returning = (self.return_end + self.return_tail[:, ::-1]).max()
        return bool(max(forward, returning) > self.deadline)

    def _order(self, numbers: list[int]) -> None:
        """Every two actions of a device in the only order that is left to them."""
        jobs = [(number, is_forward) for number in numbers for is_forward in (True, False)]
        for first, second in product(jobs, jobs):
            if first != second:
                self._exclude(first, second)

    def _exclude(self, first: tuple[int, bool], second: tuple[int, bool]) -> None:
        """Where an action of the first kind cannot precede one of the second, it follows it."""
        (end_a, tail_a, time_a), (end_b, tail_b, time_b) = self._job(first), self._job(second)
        is_late = end_a[:, None] + (time_b + tail_b)[None, :] > self.deadline
        if not is_late.any():
            return
        after = numpy.where(is_late, end_b[None, :], self.deadline * -2).max(axis=1) + time_a
        numpy.maximum(end_a, after, out=end_a)
        follows = numpy.where(is_late, tail_a[:, None], self.deadline * -2).max(axis=0) + time_a
        numpy.maximum(tail_b, follows, out=tail_b)

    def _job(self, job: tuple[int, bool]) -> tuple[Integers, Integers, int]:
        """Ends and tails by rank, and the duration, of the F or the I of a lane; not copied."""
        number, is_forward = job
        lane = self.lanes.lanes[number]
        if is_forward:
            return self.forward_end[number], self.forward_tail[number, ::-1], lane.forward
        return self.return_end[number], self.return_tail[number, ::-1], lane.returning


def is_out_of_reach(times: Times, value: int) -> bool:
    """Whether no order has a makespan of at most `value`."""
    return Windows(times, value - times.problem.profile.optimizer_ns).is_empty()


def make_times(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> Times | None:
    """Heads and tails to start from; None for the span, split placement, and where there are too many pairs."""
    if problem.options.objective == "span" or any(stage.is_split for stage in stages):
        return None
    times = Times.of(problem, stages, costs=costs)
    pairs = sum((2 * len(numbers) * times.count) ** 2 for numbers in times.partners.on.values())
    return times if pairs <= MAX_PAIRS else None


def climb(times: Times, start: int, *, steps: int, reached: int | None = None) -> int:
    """The largest value found out of reach, plus 1: strides that double, then halves, below a value that is reached."""
    low, stride, high = start - 1, max(start // 128, 1), reached
    for _ in range(steps):
        middle = low + stride if high is None else min(low + stride, (low + high) // 2)
        if middle == low:
            break
        if is_out_of_reach(times, middle):
            low, stride = middle, 2 * stride
        else:
            high = middle
    return low + 1
