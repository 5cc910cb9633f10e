"""The windows bound: stages and devices are given; suppose that some order ends by T, and look for a contradiction.

Whatever ends by T leaves every action a window, from its head to T less its tail. Two actions of one device never
overlap: where the one cannot come first without leaving its window or the other's, it comes second, and that raises
its head and the tail of the other. Repeated until nothing changes, this empties a window if T is too early.
"""

from collections.abc import Iterator
from itertools import combinations, islice, product

import numpy

from planner.bounds.minimum_costs import Integers
from planner.bounds.order.schedule_bound import HeadsAndTails, bound_of_times
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

_PROBES_PER_S = 500
"""Pairs that are tried in a second, for one stage replica; with more, as many times fewer."""

MAX_PASSES = 60
"""Passes over all pairs; each leaves valid windows."""

MAX_SWEEPS, PROBE_PASSES = 2, 6
"""Times that all open pairs are gone through, and passes that follow what an order of two actions entails."""

MAX_PROBES = 1_000
"""Most pairs that a certificate may ask to try in both orders."""

_MAX_PAIRS = 4_000_000
"""Most pairs of actions that one pass looks at."""

MAX_PROBED = 60_000_000
"""The same times the pairs that a certificate may ask to try: a second."""


Job = tuple[int, int]
"""A stage replica, and which of its actions is meant."""

FORWARD, RETURN, REST = range(3)
"""F, I and W; of a B its first and its last part."""

Pair = tuple[Job, int, Job, int]
"""Two actions of one device: a job and its rank each."""

TABLES = ("forward_end", "return_end", "rest_end", "forward_tail", "return_tail", "rest_tail")
"""Names of the tables that propagation raises."""


class TimeWindows(HeadsAndTails):
    """Heads and tails of every action of every order that ends by the deadline."""

    def __init__(self, times: HeadsAndTails, deadline: int) -> None:
        """`deadline`: end of the last synchronisation, in nanoseconds."""
        for name, value in vars(times).items():
            setattr(self, name, value.copy() if name in TABLES else value)
        self.deadline = deadline

    def is_empty(self, *, probes: int) -> bool:
        """Whether no order can end by the deadline; so many pairs of actions are tried in both orders at most."""
        if self._narrow(MAX_PASSES):
            return True
        for _ in range(MAX_SWEEPS):
            pairs = list(islice(self._open_pairs(), probes))
            before, probes = self._state(), probes - len(pairs)
            if any(self._probe(pair) for pair in pairs) or self._narrow(MAX_PASSES):
                return True
            if self._state() == before:
                break
        return bound_of_times(self) > self.deadline

    def _narrow(self, passes: int) -> bool:
        """Raise heads and tails until nothing changes; whether a window has become too short."""
        for _ in range(passes):
            before = self._state()
            for numbers in self.partners.on.values():
                self._order(numbers)
            self._pass()
            if self._is_crossed():
                return True
            if self._state() == before:
                break
        return False

    def _open_pairs(self) -> Iterator[Pair]:
        """Two actions of a device that may come in either order, each order delaying one of them, earliest first."""
        found: list[tuple[int, Pair]] = []
        for numbers in self.partners.on.values():
            for first, second in combinations(product(numbers, (FORWARD, RETURN)), 2):
                (end_a, tail_a, time_a), (end_b, tail_b, time_b) = self._job(first), self._job(second)
                late_b, late_a = end_a[:, None] + time_b, end_b[None, :] + time_a
                is_open = (late_b > end_b[None, :]) & (late_a > end_a[:, None])
                is_open &= (late_b + tail_b[None, :] <= self.deadline) & (late_a + tail_a[:, None] <= self.deadline)
                for a, b in numpy.argwhere(is_open).tolist():
                    found.append((int(end_a[a]), (first, a, second, b)))
        yield from (pair for _, pair in sorted(found))

    def _probe(self, pair: Pair) -> bool:
        """Take over what both orders of two actions have in common; whether neither is possible."""
        first, a, second, b = pair
        branches = [self._branch((first, a, second, b)), self._branch((second, b, first, a))]
        left = [branch for branch in branches if branch is not None]
        for name in TABLES if left else ():
            table = getattr(self, name)
            numpy.maximum(table, numpy.min([getattr(branch, name) for branch in left], axis=0), out=table)
        return not left

    def _branch(self, pair: Pair) -> "TimeWindows | None":
        """The windows if the first of two actions comes first; None if that cannot be."""
        first, a, second, b = pair
        branch = TimeWindows(self, self.deadline)
        (end_a, tail_a, _), (end_b, tail_b, time_b) = branch._job(first), branch._job(second)
        end_b[b] = max(end_b[b], end_a[a] + time_b)
        tail_a[a] = max(tail_a[a], time_b + tail_b[b])
        return None if branch._narrow(PROBE_PASSES) else branch

    def _is_crossed(self) -> bool:
        """Whether a head and a tail leave no room for their action."""
        forward = (self.forward_end + self.forward_tail[:, ::-1]).max()
        returning = (self.return_end + self.return_tail[:, ::-1]).max()
        rest = (self.rest_end + self.rest_tail[:, ::-1]).max()
        return bool(max(forward, returning, rest) > self.deadline)

    def _order(self, numbers: list[int]) -> None:
        """Every two actions of a device in the only order that is left to them; of W those for which F may wait."""
        gating = [n for n in numbers if self.unfinished[n] < self.count and self.replicas.replicas[n].rest]
        jobs = [*product(numbers, (FORWARD, RETURN)), *product(gating, (REST,))]
        for first, second in product(jobs, jobs):
            if first != second:
                self._exclude(first, second)

    def _exclude(self, first: Job, second: Job) -> None:
        """Where an action of the first kind cannot precede one of the second, it follows it."""
        (end_a, tail_a, time_a), (end_b, tail_b, time_b) = self._job(first), self._job(second)
        is_late = end_a[:, None] + (time_b + tail_b)[None, :] > self.deadline
        if not is_late.any():
            return
        after = numpy.where(is_late, end_b[None, :], self.deadline * -2).max(axis=1) + time_a
        numpy.maximum(end_a, after, out=end_a)
        follows = numpy.where(is_late, tail_a[:, None], self.deadline * -2).max(axis=0) + time_a
        numpy.maximum(tail_b, follows, out=tail_b)

    def _job(self, job: Job) -> tuple[Integers, Integers, int]:
        """Ends and tails by rank, and the duration, of an action of a stage replica; not copied."""
        number, kind = job
        replica = self.replicas.replicas[number]
        if kind == FORWARD:
            return self.forward_end[number], self.forward_tail[number, ::-1], replica.forward
        if kind == RETURN:
            return self.return_end[number], self.return_tail[number, ::-1], replica.returning
        return self.rest_end[number], self.rest_tail[number, ::-1], replica.rest


def is_out_of_reach(times: HeadsAndTails, value: int, *, probes: int = 0) -> bool:
    """Whether no order has a makespan of at most `value`; so many pairs of actions are tried in both orders at most."""
    return TimeWindows(times, value - times.replicas.optimizer_ns).is_empty(probes=probes)


def make_times(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> HeadsAndTails | None:
    """Heads and tails to start from; None for the span, split placement, and where there are too many pairs."""
    if problem.options.ranked_by == "span" or any(stage.is_split for stage in stages):
        return None
    times = HeadsAndTails.of(problem, stages, costs=costs)
    return times if _pairs_of_pass(times) <= _MAX_PAIRS else None


def _pairs_of_pass(times: HeadsAndTails) -> int:
    """Pairs of actions that one pass looks at."""
    return sum((2 * len(numbers) * times.count) ** 2 for numbers in times.partners.on.values())


def most_probes(times: HeadsAndTails) -> int:
    """Pairs that a certificate may ask to try in both orders."""
    return min(MAX_PROBES, MAX_PROBED // max(_pairs_of_pass(times), 1))


def raise_bound(times: HeadsAndTails, start: int, *, steps: int, reached: int | None = None, probes: int = 0) -> int:
    """The largest value found out of reach, plus 1: strides that double, then halves, below a value that is reached.

    Probes are dear: where the first stride, a short one, shows that they help little, no more is tried.
    """
    low, stride, high = start - 1, max(start // (400 if probes else 128), 1), reached
    for step in range(steps):
        middle = low + stride if high is None else min(low + stride, (low + high) // 2)
        if middle == low or (probes and step and low < start):
            break
        if is_out_of_reach(times, middle, probes=probes):
            low, stride = middle, 2 * stride
        else:
            high = middle
    return low + 1


def count_probes(times: HeadsAndTails, *, seconds: float, steps: int) -> int:
    """How many pairs may be tried per value so that so many values can be tried in so many seconds."""
    wanted = int(seconds * _PROBES_PER_S / (steps * len(times.replicas.replicas)))
    return min(most_probes(times), wanted)
