"""The classes bound: a dynamic programme over devices in classes shows that no division into stages is done in time.

For one stage per device, without replicas. Like the pipeline bound it follows the trunk stage by stage, but a state
says how many devices of every class are used and on which class the last stage is, so that work, memory and transfers
are those of the very devices. Per state the least head, tail and turnaround are kept. docs/proofs/bounds.md has proofs.
"""

from dataclasses import dataclass
from math import prod

import numpy

from planner.bounds.bisection import largest_refuted
from planner.bounds.classes.device_classes import MAX_RANKS, Classes, ClassStages, Mask
from planner.bounds.classes.ranked_refinement import Ranks, Steps
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers, Least
from planner.clock import HasTime, always

_CLASSES_STEPS = 48
"""Deadlines that are tried for the classes bound."""

SWEEPS = 3
"""Times that heads and tails, then turnarounds, are raised; a late one rarely changes any."""

MAX_MAGNITUDE = 1 << 56
"""Sums stay below this, so that 64 bits hold them."""

_MAX_ENTRIES = 1 << 24
"""Most stages times states that are looked at for one answer."""

MAX_RANKED, MAX_TABLE = 1 << 24, 1 << 22
"""Times by rank are left out where stages x squared microbatches, or entries of a table, would be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The stages from one boundary on one class that are possible, by end and by state after them."""

    stages: ClassStages
    after: Integers
    """Numbers of the states after the stage."""
    is_open: Mask
    """[end, state after]."""


def applies_to(least: Least) -> bool:
    """Whether the bound holds here."""
    options = least.problem.options
    return (
        options.objective == "makespan"
        and options.max_stages_per_device == 1
        and least.problem.max_replicas == 1
        and least.widths == (1,)
    )


class Sequence:
    """The programme for one deadline, the optimizer left out; for classes that are `is_exact` up to it."""

    def __init__(self, classes: Classes, deadline: int) -> None:
        self.classes, self.deadline = classes, deadline
        self.count, self.size = classes.count, classes.trunk.num_layers
        self.shape = (self.size + 1, classes.num_states, classes.num_classes)
        self.turnarounds = numpy.zeros(self.shape, dtype=numpy.int64)
        self.cost = SWEEPS * effort(classes, deadline)
        """Figures that were looked at, roughly."""

    def is_out_of_reach(self) -> bool:
        """Whether no plan is done by the deadline."""
        for _ in range(SWEEPS):
            found = self._go_down()
            if self.heads[self.size].min() >= NEVER:
                return True
            self._come_back(found)
        return self._is_ranked_out(found)

    def _is_ranked_out(self, found: list[tuple[int, int, Open]]) -> bool:
        """Whether times by rank show the same of what is left, where that is not too much work."""
        entries = sum(int(possible.is_open.sum()) for _, _, possible in found)
        if self.count > MAX_RANKS or entries * self.count**2 > MAX_RANKED or prod(self.shape) * self.count > MAX_TABLE:
            return False
        left = [_make_steps(start, number, possible=possible) for start, number, possible in found]
        ranks = Ranks(self.classes, self.deadline, steps=[steps for steps in left if len(steps.after)])
        is_out = ranks.is_out_of_reach()
        self.cost += ranks.cost
        return is_out

    def _go_down(self) -> list[tuple[int, int, Open]]:
        """Heads and tails from the first boundary on; the stages that are possible."""
        self.heads, self.tails = (numpy.full(self.shape, NEVER, dtype=numpy.int64) for _ in range(2))
        self.heads[0, 0], self.tails[0, 0] = 0, 0
        found = []
        for start in range(self.size):
            for number, stages in enumerate(self.classes.stages[start]):
                possible = self._append(start, number, stages=stages)
                if possible is not None:
                    found.append((start, number, possible))
        return found

    def _append(self, start: int, number: int, *, stages: ClassStages) -> Open | None:
        """Continue from every state at the boundary with one of the stages."""
        forward, backward = self.classes.hops
        room = self.classes.room[number]
        head = (self.heads[start, room] + forward[start, :, number]).min(axis=1)
        tail = (self.tails[start, room] + backward[start, :, number]).min(axis=1)
        room, head, tail = (values[head <= self.deadline] for values in (room, head, tail))
        busy = self.count * (stages.forward + stages.returning + stages.rest)
        stages = stages.keep(busy <= self.deadline)
        if not len(room) or not len(stages.ends):
            return None
        if not self.classes.trunk.returns[start]:
            tail = numpy.zeros_like(tail)
        after = room + self.classes.unit[number]
        turnaround = self.turnarounds[stages.ends][:, after, number]
        follows = numpy.maximum(tail[None, :], stages.rest[:, None])
        is_open = self._is_in_time(stages, head=head[None, :], follows=follows, turnaround=turnaround)
        place = (stages.ends[:, None], after[None, :], number)
        for table, values in (
            (self.heads, head[None, :] + stages.forward[:, None]),
            (self.tails, follows + stages.returning[:, None]),
        ):
            table[place] = numpy.minimum(table[place], numpy.where(is_open, values, NEVER))
        return Open(stages=stages, after=after, is_open=is_open)

    def _is_in_time(self, stages: ClassStages, *, head: Integers, follows: Integers, turnaround: Integers) -> Mask:
        """Rules 1 to 4: all work, the last I, rounds of as many microbatches as memory holds, the last F."""
        forward, returning, rest, in_flight, forced = (
            column[:, None]
            for column in (stages.forward, stages.returning, stages.rest, stages.in_flight, stages.forced)
        )
        begin = head + numpy.maximum(turnaround - (in_flight - 1) * forward, 0)
        allowed: Mask = turnaround <= self.deadline
        allowed &= begin + self.count * (forward + returning + rest) <= self.deadline
        allowed &= begin + self.count * (forward + returning) + follows <= self.deadline
        rounds, left = numpy.divmod(self.count - 1, in_flight)
        cycle = forward + turnaround + returning
        allowed &= head + rounds * cycle + left * forward + cycle + follows <= self.deadline
        last = numpy.where(in_flight < self.count, begin, head) + self.count * forward + forced
        allowed &= last + turnaround + returning + follows <= self.deadline
        return allowed

    def _come_back(self, found: list[tuple[int, int, Open]]) -> None:
        """Turnarounds, from the end of the trunk, through the stages that are possible."""
        forward, backward = self.classes.hops
        turnarounds = numpy.full(self.shape, NEVER, dtype=numpy.int64)
        turnarounds[self.size] = 0
        for start, number, possible in reversed(found):
            if not self.classes.trunk.returns[start]:
                turnarounds[start] = 0
                continue
            stages, after = possible.stages, possible.after
            inside = turnarounds[stages.ends][:, after, number] + (stages.forward + stages.returning)[:, None]
            least = numpy.where(possible.is_open, inside, NEVER).min(axis=0)
            before = after - self.classes.unit[number]
            hop = forward[start, :, number] + backward[start, :, number]
            turnarounds[start, before] = numpy.minimum(turnarounds[start, before], least[:, None] + hop[None, :])
        self.turnarounds = numpy.minimum(turnarounds, self.deadline + 1)


def _make_steps(start: int, number: int, *, possible: Open) -> Steps:
    """What is possible from a boundary on a class, one entry per end and state."""
    end, state = numpy.nonzero(possible.is_open)
    return Steps.untimed(start, number, stages=possible.stages.keep(end), after=possible.after[state])


def is_exact(classes: Classes, deadline: int) -> bool:
    """Whether no sum can leave 64 bits, and the answer is not too much work."""
    trunk, buffers = classes.trunk, classes.least.problem.options.receive_buffers
    work = sum(int(f[-1] + b[-1]) for f, b in zip(classes.forward, classes.backward, strict=True))
    received = buffers * 2 * max([*trunk.forward_bytes, *trunk.backward_bytes])
    time = 4 * classes.count * (deadline + work + classes.slowest_hops)
    room = 2 * classes.count * (int(trunk.state[-1] + trunk.stash[-1]) + received + max(classes.memory))
    return max(time, room) < MAX_MAGNITUDE and effort(classes, deadline) <= _MAX_ENTRIES


def effort(classes: Classes, deadline: int) -> int:
    """Stages until the deadline times states."""
    found = 0
    for forward, backward in zip(classes.forward, classes.backward, strict=True):
        done = classes.count * (forward + backward)
        found += int((numpy.searchsorted(done, done + deadline, side="right") - numpy.arange(len(done))).sum())
    return found * classes.num_states


def raise_bound(
    classes: Classes,
    start: int,
    *,
    figures: float,
    has_time: HasTime = always,
) -> int:
    """The largest deadline + 1 found out of reach, at least `start`, looking at about so many figures."""
    left = figures

    def is_out(deadline: int) -> bool:
        nonlocal left
        if left < SWEEPS * effort(classes, deadline) or not is_exact(classes, deadline):
            return False
        sequence = Sequence(classes, deadline)
        answer = sequence.is_out_of_reach()
        left -= sequence.cost
        return answer

    return largest_refuted(is_out, start, steps=_CLASSES_STEPS, has_time=has_time)
