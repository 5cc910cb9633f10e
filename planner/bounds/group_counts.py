"""The groups bound: counted by type, the devices do not suffice for stages that are all done in time.

For one stage per device. Each stage of the trunk has some replicas and a width, hence a number of devices of each type.
docs/proofs/bounds.md has the proof.
"""

import math

import numpy
from numpy.typing import NDArray

from planner.bounds.bisection import largest_refuted
from planner.bounds.group_stages import Counts, StageFigures, StageLayouts
from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import Integers, Least
from planner.clock import HasTime, always

_STEPS, _FEW_STEPS = 14, 8
"""Deadlines that are tried at most: where every device is counted, and where several count as one."""
_SURE_STEPS = 6
"""Deadlines that are tried whatever the time."""
_MOST_EFFORT = 1_000_000_000
"""Entries of tables for one deadline, at most."""
_QUICK_EFFORT, _LITTLE_EFFORT = 30_000_000, 30_000_000
"""The same where nobody waits for more, and for counting each type."""
_MOST_TYPES = 2
_UNITS = (1, 2, 4, 8, 16)
_MOST = 1 << 57
"""Sums of times and of bytes stay below this, so that 64 bits hold them."""


def applies_to(least: Least) -> bool:
    """Whether the bound holds here, and is derived in seconds."""
    options = least.problem.options
    holds = (
        options.objective == "makespan"
        and not options.cuts_unevenly
        and not options.has_few_bounds
        and options.max_stages_per_device == 1
        and len(least.types) <= _MOST_TYPES
        and (least.problem.max_replicas > 1 or least.widths != (1,))
    )
    if not holds or max(_sums(least)) >= _MOST:
        return False
    layouts = StageLayouts(least, Trunk(least))
    return any(_DeviceCounting(layouts, by_type=by_type).find_unit(_MOST_EFFORT) for by_type in (True, False))


def _sums(least: Least) -> tuple[int, int]:
    """Nanoseconds and bytes that no sum over layers exceeds."""
    layers = range(len(least.layers))
    works = [
        max(work.forward_ns + work.backward_ns + work.input_grad_ns for *_, work in least.choices(n)) for n in layers
    ]
    sizes = [max(entry.state_bytes + entry.stash_bytes for _, entry in least.entries(n)) for n in layers]
    return 2 * least.problem.num_microbatches * (sum(works) + sum(least.overhead)), sum(sizes)


class _DeviceCounting:
    """How devices are counted: each type on its own, or the first type and both together.

    In the second way stages of the second type may have idle devices of the first. Of stages that differ only in how
    many of their devices are of the first type it needs those with the least.
    """

    def __init__(self, layouts: StageLayouts, *, by_type: bool) -> None:
        self.layouts, self.by_type = layouts, by_type
        self.numbers = tuple(layouts.least.types[name] for name in layouts.types)

    def find_unit(self, effort: int) -> int:
        """Devices that are counted as one, rounded down for every stage; 0 where no unit makes tables so small."""
        for unit in _UNITS:
            different = {
                (*key[:2], each) for key, taken in self.layouts.alike.items() for each in self.least_taken(taken, unit)
            }
            states = math.prod(number + 1 for number in self.units(self.numbers, unit))
            if len(different) * states * (self.layouts.trunk.num_layers + 1) ** 2 <= effort:
                return unit
        return 0

    def units(self, numbers: Counts, unit: int) -> Counts:
        """So many devices of each type in units."""
        *first, last = numbers
        return tuple(number // unit for number in (*first, last if self.by_type else sum(numbers)))

    def least_taken(self, taken: list[Counts], unit: int) -> list[Counts]:
        """What stages take that differ in nothing else; of ways with one sum that of the least of the first type."""
        found = sorted({self.units(numbers, unit) for numbers in taken})
        return found if self.by_type else found[:1]


class GroupCounts:
    """The programme, for any deadline."""

    def __init__(self, least: Least, *, is_quick: bool = False, by_type: bool | None = None) -> None:
        """`by_type`: whether each type is counted on its own; None: where that is little work."""
        self.least, layouts = least, StageLayouts(least, Trunk(least))
        self.size, self.returns, self.count = layouts.trunk.num_layers, layouts.returns, layouts.count
        if by_type is None:
            by_type = _DeviceCounting(layouts, by_type=True).find_unit(_LITTLE_EFFORT) == 1
        counting = _DeviceCounting(layouts, by_type=by_type)
        self.unit = counting.find_unit(_QUICK_EFFORT if is_quick else _MOST_EFFORT) or _UNITS[-1]
        self.shape = tuple(number + 1 for number in counting.units(counting.numbers, self.unit))
        self.stages = [(counting.least_taken(taken, self.unit), figures) for taken, figures in layouts.stages()]

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan is done by then, the optimizer left out."""
        return _Division(self, deadline).is_out_of_reach()


class _Division:
    """The programme for one deadline: [boundary, devices taken or idle] the least figures over stages before it.

    `turnarounds` are those over the stages behind it: from the end of an F before the boundary to its gradient.
    """

    def __init__(self, counts: GroupCounts, deadline: int) -> None:
        self.counts, self.deadline, self.size = counts, deadline, counts.size
        shape = (self.size + 1, *counts.shape)
        self.heads, self.turns, self.turnarounds = (numpy.full(shape, NEVER, dtype=numpy.int64) for _ in range(3))
        self.heads[0] = self.turns[0] = self.turnarounds[self.size] = 0
        self.has_turnarounds = counts.returns and counts.count * (deadline + 1) < _MOST
        """Whether gradients come back, and sums of turnarounds stay within 64 bits."""

    def is_out_of_reach(self) -> bool:
        """Whether no way leads through all boundaries."""
        for begin in reversed(range(self.size)):
            for taken, stages in self.counts.stages:
                self._come_back(begin, taken, stages=stages)
        if self.turnarounds[0].min() >= NEVER:
            return True
        for begin in range(self.size):
            for taken, stages in self.counts.stages if self.heads[begin].min() < NEVER else ():
                self._go_on(begin, taken, stages=stages)
        return bool(self.heads[self.size].min() >= NEVER)

    def _come_back(self, begin: int, taken: list[Counts], *, stages: StageFigures) -> None:
        """Turnarounds through such stages from a boundary on."""
        ends, row = self._in_time(begin, stages, head=0, answer=0)
        if not row or self.turnarounds[ends].min() >= NEVER:
            return
        turnaround, last = self._behind(ends, row), self._last(ends)
        for counts in taken:
            before, after = self._places(counts, first=(0,) * len(counts), last=last)
            behind = turnaround[(slice(None), *after)]
            is_late = self._is_late(row, head=0, answer=0, turnaround=behind)
            place = self.turnarounds[begin][before]
            found = numpy.where(is_late, NEVER, (behind + row.inside) * self.has_turnarounds)
            numpy.minimum(place, found.min(axis=0), out=place)

    def _go_on(self, begin: int, taken: list[Counts], *, stages: StageFigures) -> None:
        """Heads and turns behind such stages from a boundary on."""
        heads, turns = self.heads[begin], self.turns[begin]
        ends, row = self._in_time(begin, stages, head=int(heads.min()), answer=int(turns.min()))
        if not row or self.turnarounds[ends].min() >= NEVER:
            return
        turnaround, last = self._behind(ends, row), self._last(ends)
        first = tuple(int(places.min()) for places in numpy.nonzero(heads < NEVER))
        for counts in taken:
            before, after = self._places(counts, first=first, last=last)
            head, answer = heads[before][None], turns[before][None]
            if not head.size:
                continue
            is_late = self._is_late(row, head=head, answer=answer, turnaround=turnaround[(slice(None), *after)])
            turned = numpy.maximum(answer + row.back, head + row.closing) + row.forward
            for table, reached in ((self.heads, head + row.forward), (self.turns, turned)):
                place = table[(ends, *after)]
                numpy.minimum(place, numpy.where(is_late, NEVER, reached), out=place)

    def _in_time(
        self, begin: int, stages: StageFigures, *, head: int, answer: int
    ) -> tuple[slice, StageFigures | None]:
        """Ends of such stages up to the last that is in time with these figures before it, and their figures."""
        done = numpy.maximum(head + stages.work[begin], answer + stages.returned[begin])
        timely = numpy.flatnonzero(done[begin + 1 :] <= self.deadline) + begin + 1
        ends = slice(begin + 1, int(timely.max(initial=begin)) + 1)
        if ends.start >= ends.stop:
            return ends, None
        shape = (-1, *[1] * len(self.counts.shape))
        return ends, StageFigures(*(figure[begin, ends].reshape(shape) for figure in stages))

    def _behind(self, ends: slice, row: StageFigures) -> Integers:
        """Turnarounds from the end of an F of such stages on, by the devices taken up to their end."""
        return self.turnarounds[ends] + row.passed * self.has_turnarounds

    def _last(self, ends: slice) -> Counts:
        """Of what is counted, the places behind the last from which some turnaround is possible."""
        is_open = (self.turnarounds[ends] < NEVER).any(axis=0)
        return tuple(int(places.max(initial=-1)) + 1 for places in numpy.nonzero(is_open))

    @staticmethod
    def _places(counts: Counts, *, first: Counts, last: Counts) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Places in tables before and after so many devices are taken: from `first` before, below `last` after."""
        rows = list(zip(counts, first, last, strict=True))
        before = tuple(slice(low, max(high - count, low)) for count, low, high in rows)
        return before, tuple(slice(low + count, max(high, low + count)) for count, low, high in rows)

    def _is_late(
        self, row: StageFigures, *, head: Integers | int, answer: Integers | int, turnaround: Integers
    ) -> NDArray[numpy.bool_]:
        """Whether the work, the last gradient, or the turnarounds that memory asks for end after the deadline."""
        is_late: NDArray[numpy.bool_] = turnaround > self.deadline
        turnaround = numpy.minimum(turnaround, self.deadline + 1)
        idle = numpy.maximum(turnaround - row.filled, 0) + numpy.maximum(turnaround - row.drained, 0)
        is_late |= numpy.maximum(head + row.work, answer + row.returned) > self.deadline
        is_late |= numpy.maximum(head + row.own_work, answer + row.own_returned) + idle > self.deadline
        tail = numpy.maximum(answer, head + row.closing - row.back) + row.sent
        is_late |= tail + row.turned + row.rounds * turnaround > self.deadline
        return is_late


def raise_bound(
    least: Least, start: int, *, is_quick: bool = False, has_time: HasTime = always, reached: int | None = None
) -> int:
    """The largest makespan found out of reach, plus 1; at least `start`.

    What is quick counts devices more roughly, and takes some steps whatever the time; unless `is_quick`, what is exact
    follows. `reached`: the makespan of a plan; nothing above it is tried.
    """
    rough, sure = GroupCounts(least, is_quick=True), iter(range(_SURE_STEPS))
    found = _raise_counts(rough, start, has_time=lambda: next(sure, None) is not None or has_time(), reached=reached)
    if is_quick or not has_time() or rough.unit == 1 or (reached is not None and found >= reached):
        return found
    return _raise_counts(GroupCounts(least), found, has_time=has_time, reached=reached)


def _raise_counts(counts: GroupCounts, start: int, *, has_time: HasTime, reached: int | None) -> int:
    return largest_refuted(
        lambda deadline: counts.is_out_of_reach(deadline - counts.least.optimizer_ns),
        start,
        steps=_STEPS if counts.unit == 1 else _FEW_STEPS,
        has_time=has_time,
        reached=reached,
    )
