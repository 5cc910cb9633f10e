"""What the classes bound sees of every microbatch: times by rank, for the stages that its sums leave possible.

Ranks are places in time: what is said of the n-th F of a stage holds for whichever microbatch that is. All of it is
kept per state, each rank at its least on its own.

E(m): no F number m ends sooner. S(n): what follows an I after which n more come. Q(n): from the end of F number j to
the gradient of number j + n. f(n): the work that memory forces between an F and the n-th after it. A(n) runs from the
start of F number j to the end of F number j + n, C(n) to the end of I number j + n:

    A(n) >= (n + 1) F + f(n)
    A(n) >= C(n - k) - i + F + f(k)     for n >= k
    C(n) >= (n + 1) (F + i)
    C(n) >= A(a) + Q(n - a) + i         for a <= n

Upstream, Q(n) is at least C(n) and both transfers. A stage is possible only if every F and I ends by T less what
follows. For each earliest start x, everything that cannot start before x has to run between x and T.
"""

from dataclasses import dataclass

import numpy

from planner.bounds.classes.device_classes import Classes, ClassStages, Mask
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers

SWEEPS = 3
"""Times that the stages are gone through, from the end and from the beginning."""

_CALLS = 800
"""What the calls for one rank of the stages of one boundary and class take, in figures."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """The possible stages from one boundary on one class: one entry per end and state."""

    start: int
    number: int
    """The class."""
    stages: ClassStages
    """The stage of every entry."""
    after: Integers
    """The state after it."""
    to_forward: Integers
    """[entry, n]: from the start of an F to the end of the n-th after it."""
    to_return: Integers
    """[entry, n]: from the start of an F to the end of the I that is n ranks further."""

    @classmethod
    def untimed(cls, start: int, number: int, *, stages: ClassStages, after: Integers) -> "Steps":
        """Before any times are known."""
        times = numpy.zeros((len(after), 0), dtype=numpy.int64)
        return cls(start=start, number=number, stages=stages, after=after, to_forward=times, to_return=times)

    def keep(self, which: Mask) -> "Steps":
        """The entries that a mask or indices choose."""
        return Steps(
            start=self.start,
            number=self.number,
            stages=self.stages.keep(which),
            after=self.after[which],
            to_forward=self.to_forward[which],
            to_return=self.to_return[which],
        )


class Ranks:
    """The programme with times by rank, for one deadline and the stages that are left."""

    def __init__(self, classes: Classes, deadline: int, *, steps: list[Steps]) -> None:
        self.classes, self.deadline, self.steps = classes, deadline, steps
        self.count, self.size = classes.count, classes.trunk.num_layers
        self.rank = numpy.arange(self.count, dtype=numpy.int64)
        self.cost = 0
        """Figures that were looked at, roughly."""
        self.shape = (self.size + 1, classes.num_states, classes.num_classes, self.count)

    def is_out_of_reach(self) -> bool:
        """Whether no way is left."""
        for _ in range(SWEEPS):
            before = sum(len(steps.after) for steps in self.steps)
            self.cost += sweep_figures(before, num_steps=len(self.steps), count=self.count)
            self._come_back()
            self._go_down()
            if self.forward_ends[self.size, :, :, 0].min() >= NEVER:
                return True
            if sum(len(steps.after) for steps in self.steps) == before:
                return False
        return False

    def _come_back(self) -> None:
        """Per state and n: from the end of an F to the gradient that is n ranks further."""
        forward, backward = self.classes.hops
        self.turnarounds = numpy.full(self.shape, NEVER, dtype=numpy.int64)
        self.turnarounds[self.size] = 0
        for steps in reversed(self.steps):
            start, number = steps.start, steps.number
            if not self.classes.trunk.returns[start]:
                self.turnarounds[start] = 0
            self._time(steps)
            if not self.classes.trunk.returns[start]:
                continue
            before = steps.after - self.classes.unit[number]
            hop = forward[start, :, number] + backward[start, :, number]
            least = numpy.full((self.classes.num_states, self.count), NEVER, dtype=numpy.int64)
            numpy.minimum.at(least, before, steps.to_return)
            found = numpy.minimum(least[:, None, :] + hop[None, :, None], NEVER)
            self.turnarounds[start] = numpy.minimum(self.turnarounds[start], found)

    def _time(self, steps: Steps) -> None:
        """How F and I of a stage follow each other, given the least turnarounds from it."""
        stages = steps.stages
        forward, returning, most = stages.forward, stages.returning, stages.in_flight
        turnarounds = numpy.minimum(self.turnarounds[stages.ends, steps.after, steps.number], self.deadline + 1)
        to_forward = (self.rank + 1) * forward[:, None] + stages.between
        to_return = (self.rank + 1) * (forward + returning)[:, None]
        entry = numpy.arange(len(most))
        again = forward - returning + stages.between[entry, numpy.minimum(most, self.count - 1)]
        for n in range(self.count):
            if n:
                to_forward[:, n] = numpy.maximum(to_forward[:, n], to_forward[:, n - 1] + forward)
                waits = to_return[entry, numpy.maximum(n - most, 0)] + again
                to_forward[:, n] = numpy.where(n >= most, numpy.maximum(to_forward[:, n], waits), to_forward[:, n])
                to_return[:, n] = numpy.maximum(to_return[:, n], to_return[:, n - 1] + returning)
            there = (to_forward[:, : n + 1] + turnarounds[:, n::-1]).max(axis=1) + returning
            to_return[:, n] = numpy.maximum(to_return[:, n], there)
        # beyond the deadline all times are alike
        steps.to_forward = numpy.minimum(to_forward, self.deadline + 1)
        steps.to_return = numpy.minimum(to_return, self.deadline + 1)

    def _go_down(self) -> None:
        """Per state: ends of the n-th F, and what follows the start of an I after which n more come."""
        self.forward_ends, self.tails = (numpy.full(self.shape, NEVER, dtype=numpy.int64) for _ in range(2))
        self.forward_ends[0, 0], self.tails[0, 0] = 0, 0
        self.steps = [kept for kept in map(self._append, self.steps) if len(kept.after)]

    def _append(self, steps: Steps) -> Steps:
        """Continue with the stages that are in time; the others are dropped."""
        start, number = steps.start, steps.number
        forward, backward = self.classes.hops
        ready = (self.forward_ends[start] + forward[start, :, number][None, :, None]).min(axis=1)
        behind = (self.tails[start] + backward[start, :, number][None, :, None]).min(axis=1)
        if not self.classes.trunk.returns[start]:
            behind = numpy.zeros_like(behind)
        before = steps.after - self.classes.unit[number]
        reached = ready[before, 0] <= self.deadline
        steps, before = steps.keep(reached), before[reached]
        ready, behind = (
            numpy.minimum(ready[before], self.deadline + 1),
            numpy.minimum(behind[before], self.deadline + 1),
        )
        ends = _chain(ready, steps.to_forward)
        returns = _chain(ready, steps.to_return)
        tails, left = self._follow(steps, behind)
        kept = self._is_in_time(steps, begin=ready[:, 0], times=(ends, returns), tails=(left, tails))
        place = (steps.stages.ends[kept], steps.after[kept])
        numpy.minimum.at(self.forward_ends[:, :, number], place, ends[kept])
        numpy.minimum.at(self.tails[:, :, number], place, (tails + steps.stages.returning[:, None])[kept])
        return steps.keep(kept)

    def _follow(self, steps: Steps, behind: Integers) -> tuple[Integers, Integers]:
        """[entry, n]: what follows the end of an I, and of an F, after which n more of its kind come."""
        stages = steps.stages
        forward, returning, rest, most = stages.forward, stages.returning, stages.rest, stages.in_flight
        turnarounds = numpy.minimum(self.turnarounds[stages.ends, steps.after, steps.number], self.deadline + 1)
        more = numpy.maximum(self.rank[None, :] + 1 - most[:, None], 0) * forward[:, None]
        tails = numpy.maximum(behind, more + self.rank * returning[:, None] + (self.rank + 1) * rest[:, None])
        left = numpy.zeros_like(tails)
        entry = numpy.arange(len(most))
        for n in range(self.count):
            if n:
                tails[:, n] = numpy.maximum(tails[:, n], tails[:, n - 1] + returning)
                waits = left[entry, numpy.maximum(n - most, 0)] + forward
                tails[:, n] = numpy.where(n >= most, numpy.maximum(tails[:, n], waits), tails[:, n])
            left[:, n] = (tails[:, : n + 1] + turnarounds[:, n::-1]).max(axis=1) + returning
            if n:
                left[:, n] = numpy.maximum(left[:, n], left[:, n - 1] + forward)
        return tails, left

    def _is_in_time(
        self, steps: Steps, *, begin: Integers, times: tuple[Integers, Integers], tails: tuple[Integers, Integers]
    ) -> Mask:
        """Whether every F and I is in time, and the device can do all that is due by any F or I."""
        stages = steps.stages
        forward, returning = stages.forward, stages.returning
        due_forward, due_return = (self.deadline - tail[:, ::-1] for tail in tails)
        in_time: Mask = numpy.logical_and((times[0] <= due_forward).all(axis=1), (times[1] <= due_return).all(axis=1))
        in_time &= self._has_time_left(stages, times)
        turnarounds = self.turnarounds[stages.ends, steps.after, steps.number, 0]
        idle = numpy.maximum(turnarounds - (stages.in_flight - 1) * forward, 0)
        for n in range(self.count):
            num_forward = numpy.maximum((due_forward <= due_return[:, n, None]).sum(axis=1), n + 1)
            in_time &= begin + idle + (n + 1) * returning + num_forward * forward <= due_return[:, n]
            num_return = (due_return <= due_forward[:, n, None]).sum(axis=1)
            work = numpy.maximum(num_return * returning, stages.between[:, n]) + (n + 1) * forward
            in_time &= begin + work + numpy.where(num_return > 0, idle, 0) <= due_forward[:, n]
        return in_time

    def _has_time_left(self, stages: ClassStages, times: tuple[Integers, Integers]) -> Mask:
        """Whether all that cannot start before some F or I can, W included, has time until the deadline."""
        forward, backward = stages.forward, stages.returning + stages.rest
        starts = times[0] - forward[:, None], times[1] - stages.returning[:, None]
        has_time = numpy.ones(len(forward), dtype=numpy.bool_)
        for n in range(self.count):
            for own, own_work, other, other_work in (
                (starts[0], forward, starts[1], backward),
                (starts[1], backward, starts[0], forward),
            ):
                num_others = (other >= own[:, n, None]).sum(axis=1)
                has_time &= own[:, n] + (self.count - n) * own_work + num_others * other_work <= self.deadline
        return has_time


def sweep_figures(num_entries: int, *, num_steps: int, count: int) -> int:
    """Figures of one sweep over so many entries of so many boundaries and classes, with so many microbatches."""
    return num_entries * count**2 // 4 + _CALLS * count * num_steps


def _chain(first: Integers, then: Integers) -> Integers:
    """[entry, n]: the most of first[j] + then[n - j]."""
    found = numpy.empty_like(first)
    for n in range(first.shape[1]):
        found[:, n] = (first[:, : n + 1] + then[:, n::-1]).max(axis=1)
    return found
