"""The least reduced cost of a path through the trunk: a dynamic programme over boundaries, slots and heads.

With prices on layers every load of a device has a value, and what it lacks to the largest value is its *reduced cost*.
A plan cannot lack more than `slack` on all devices. The reduced cost of a load is shared out between its stages, and a
stage on r replicas causes at least r x its least share of the loads that hold it; which are in time depends on its
head.
"""

from dataclasses import dataclass

import numpy

from planner.bounds.device_packing.device_loads import DeviceLoads, Mask, OpenStages
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, always, require_time

NO_COST = 1 << 50
"""A larger reduced cost than any plan can have."""

_SHARINGS = 4
"""How often the reduced cost of loads is shared out anew between their two stages."""

_COARSE, _FINE = 64, 4
"""Heads and turnarounds are rounded down to so many values, and on few slots to so many times as many."""

_FEW_SLOTS = 32
"""Slots beyond which they are rounded to `_COARSE` values: the tables grow with both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Loads with their reduced cost, and the slack of a plan."""

    loads: DeviceLoads
    reduced_cost: Integers
    slack: int


class RoundedClock:
    """Times rounded down to whole steps, the last of which stands for all later times.

    A fine step is a part of a coarse one, so that nothing is rounded further down than on coarse ones.
    """

    def __init__(self, most: int, *, slots: int) -> None:
        self.parts = _FINE if slots <= _FEW_SLOTS else 1
        self.size = _COARSE * self.parts
        """Steps that are distinguished: times beyond share the last one."""
        self.coarse = -(-most // _COARSE)

    def numbers(self, times: Integers) -> Integers:
        """In which step they are."""
        return times * self.parts // self.coarse

    def last(self, times: Integers) -> Integers:
        """The same, the last one for all later times."""
        return numpy.clip(self.numbers(times), 0, self.size - 1)

    def times(self, numbers: Integers) -> Integers:
        """When steps begin, rounded down."""
        return numbers * self.coarse // self.parts


class ReducedCostPaths:
    """The paths through the trunk, stage by stage, that have reduced costs within the slack."""

    def __init__(self, stages: OpenStages, priced: Priced) -> None:
        self.stages, self.priced = stages, priced
        boundaries = self.boundaries = stages.boundaries
        self.slots = min(boundaries.chunks * boundaries.num_devices, boundaries.size * boundaries.most)
        self.pairs = priced.loads.second >= 0
        self.least, self.shares = share_reduced_cost(priced, num_stages=len(stages.start))
        most = 2 * int(stages.head[stages.is_open].max(initial=0)) + stages.deadline // 20 + 1
        self.clock = RoundedClock(most, slots=self.slots)
        self._rate()

    def _rate(self) -> None:
        """Per stage the least reduced cost by bucket of its head, that after one on its device, and where it may be."""
        stages, loads = self.stages, self.priced.loads
        of_first, of_second = self.shares
        self.costs = numpy.full((len(stages.start), self.clock.size), NO_COST)
        self.following = numpy.full(len(stages.start), NO_COST)
        self.may_follow = numpy.zeros((len(stages.start), self.boundaries.replicas + 1), dtype=numpy.bool_)
        separate = self.pairs & ~loads.follows
        behind = loads.second[loads.follows]
        for stage, latest, share, which in (
            (loads.first, loads.first_latest, of_first, slice(None)),
            (loads.second, loads.second_latest, of_second, separate),
        ):
            numpy.minimum.at(self.costs, (stage[which], self.clock.last(latest[which])), share[which])
        self.costs = numpy.minimum.accumulate(self.costs[:, ::-1], axis=1)[:, ::-1]
        numpy.minimum.at(self.following, behind, of_second[loads.follows])
        self.may_follow[behind, stages.replicas[loads.first[loads.follows]]] = True

    def _ahead(self) -> Integers:
        """[boundary, slots used]: the least reduced cost of the stages from there on, whatever their heads."""
        stages, size = self.stages, self.boundaries.size
        found = numpy.full((size + 1, self.slots + 1), NO_COST)
        found[size] = 0
        for group in self.groups(backwards=True):
            start, used = int(stages.start[group[0]]), int(stages.used[group[0]])
            place = found[start, : self.slots + 1 - used]
            own = numpy.minimum(self.least[group] * used, NO_COST)
            beyond = found[stages.end[group], used:] + own[:, None]
            numpy.minimum(place, beyond.min(axis=0), out=place)
        least: Integers = numpy.minimum(found, NO_COST)
        return least

    def groups(self, *, backwards: bool = False) -> list[Integers]:
        """Open stages that the slots can hold, by their start, those of one start, replicas and width together."""
        stages, b = self.stages, self.boundaries
        chosen = numpy.flatnonzero(stages.is_open & (stages.used <= self.slots) & (self.least < NO_COST))
        key = (stages.start * (b.replicas + 1) + stages.replicas) * (b.most + 1) + stages.used
        key = key[chosen]
        order = numpy.argsort(key, kind="stable")
        chosen, key = chosen[order], key[order]
        found = numpy.split(chosen, numpy.flatnonzero(numpy.diff(key)) + 1) if len(chosen) else []
        return found[::-1] if backwards else found

    def count_states(self) -> int:
        """Open stages, by the replicas before them and the slots that are left."""
        return int(self.stages.is_open.sum()) * len(self.boundaries.allowed) * self.slots

    def narrow(self, *, has_time: HasTime = always) -> bool:
        """Close the stages on no path within the slack, and raise the heads of the others; whether a path is left.

        Raises InterruptedStepError without time.
        """
        stages, size = self.stages, self.boundaries.size
        self.ahead = self._ahead()
        self.reduced_cost = numpy.full(
            (size + 1, self.boundaries.replicas + 1, 2, self.slots + 1, self.clock.size), NO_COST
        )
        self.heads, self.soonest = (numpy.full(len(stages.start), NEVER) for _ in range(2))
        for group in self.groups():
            require_time(has_time)
            if stages.start[group[0]] == 0:
                for stage in group.tolist():
                    self._begin(stage)
            else:
                self._go_on(group)
        stages.is_open &= self.heads < NEVER
        for raised, found in ((stages.head, self.heads), (stages.soonest, self.soonest)):
            numpy.maximum(raised, numpy.where(stages.is_open, found, 0), out=raised)
        return bool(stages.is_open.any() and self.reduced_cost[size].min() <= self.priced.slack)

    def _begin(self, stage: int) -> None:
        stages = self.stages
        end, used, replicas = (int(column[stage]) for column in (stages.end, stages.used, stages.replicas))
        reduced_cost = int(self.costs[stage, 0]) * used
        if reduced_cost + self.ahead[end, used] > self.priced.slack:
            return
        self.heads[stage] = self.soonest[stage] = 0
        place = self.reduced_cost[end, replicas, 0, used]
        bucket = int(self.clock.last(stages.forward[stage]))
        place[bucket] = min(place[bucket], reduced_cost)

    def _go_on(self, group: Integers) -> None:
        """After every last stage: by its replicas, and whether the transfer to it was avoided (`late` by that much)."""
        start = int(self.stages.start[group[0]])
        for last in self.boundaries.allowed:
            stays = self.may_follow[group, last]
            for late in (0, 1):
                before = self.reduced_cost[start, last, late]
                if before.min() < NO_COST:
                    for may_stay in (False, True):
                        if (stays == may_stay).any():
                            path = _Path(last=last, late=late, stays=may_stay)
                            self._append(group[stays == may_stay], before, path=path)

    def _append(self, group: Integers, before: Integers, *, path: "_Path") -> None:
        """Add each of the stages to all paths that end where they start, if their devices are as `path` says.

        F of a sample avoids no two transfers in a row.
        """
        stages, b = self.stages, self.boundaries
        start, used, replicas = (int(column[group[0]]) for column in (stages.start, stages.used, stages.replicas))
        hop = int(b.forward_hops[start, path.last, replicas])
        delay = hop if not path.stays else min(hop, int(b.least_hops[path.last])) if path.late else 0
        rows, columns = _box(before[: self.slots + 1 - used] < NO_COST)
        if not len(rows):
            return
        ended = self.clock.times(columns)
        cost = self.costs[group[:, None], self.clock.last(ended + hop)]
        if path.stays:
            cost = numpy.minimum(cost, self.following[group][:, None])
        ends = stages.end[group]
        reduced_cost = before[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] + (cost * used)[:, None, :]
        reduced_cost[reduced_cost + self.ahead[ends[:, None], rows + used][:, :, None] > self.priced.slack] = NO_COST
        is_path = (reduced_cost < NO_COST).any(axis=1)
        found = is_path.any(axis=1)
        if not found.any():
            return
        group, ends, reduced_cost = group[found], ends[found], reduced_cost[found]
        first = ended[is_path[found].argmax(axis=1)]
        self.heads[group] = numpy.minimum(self.heads[group], first + hop)
        self.soonest[group] = numpy.minimum(self.soonest[group], first + delay)
        shift = columns[0] + self.clock.numbers(delay + stages.forward[group])
        table = self.reduced_cost[:, replicas, int(path.stays and not path.late), used + rows[0] : used + rows[-1] + 1]
        for end, moved, own in zip(ends.tolist(), shift.tolist(), reduced_cost, strict=True):
            merge(table[end], own, shift=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """The part of a path before a stage."""

    last: int
    """Replicas of the last stage."""
    late: int
    """Whether the transfer to that one was avoided."""
    stays: bool
    """Whether the stage may be on a device of the last one."""


def _box(chosen: Mask) -> tuple[Integers, Integers]:
    """The rows and the columns from the first to the last that has any of the chosen."""
    rows, columns = numpy.flatnonzero(chosen.any(axis=1)), numpy.flatnonzero(chosen.any(axis=0))
    if not len(rows):
        return rows, columns
    return numpy.arange(rows[0], rows[-1] + 1), numpy.arange(columns[0], columns[-1] + 1)


def merge(place: Integers, reduced_cost: Integers, *, shift: int) -> None:
    """[slots, buckets]: the least of what is there and of reduced cost moved by buckets, none beyond the last."""
    width = reduced_cost.shape[1]
    inside = max(min(width, place.shape[1] - 1 - shift), 0)
    target = place[:, shift : shift + inside]
    numpy.minimum(target, reduced_cost[:, :inside], out=target)
    if inside < width:
        numpy.minimum(place[:, -1], reduced_cost[:, inside:].min(axis=1), out=place[:, -1])


def share_reduced_cost(priced: Priced, *, num_stages: int) -> tuple[Integers, tuple[Integers, Integers]]:
    """Per stage the least reduced cost that it causes on a device; per load what its first and its second stage cause
    of it.

    At first two stages cause a half each. What a load then costs beyond the least of both goes to them in equal parts,
    which lessens no least: a stage that goes well with few others comes to bear more than half.
    """
    first, second, reduced_cost = priced.loads.first, priced.loads.second, priced.reduced_cost
    pairs = numpy.flatnonzero(second >= 0)
    of_first, of_second = reduced_cost.copy(), numpy.zeros_like(reduced_cost)
    of_first[pairs] = reduced_cost[pairs] // 2
    of_second[pairs] = reduced_cost[pairs] - of_first[pairs]
    for further in range(_SHARINGS + 1):
        least = numpy.full(num_stages, NO_COST)
        numpy.minimum.at(least, first, of_first)
        numpy.minimum.at(least, second[pairs], of_second[pairs])
        if further < _SHARINGS:
            own, others = least[first[pairs]], least[second[pairs]]
            of_first[pairs] = own + (reduced_cost[pairs] - own - others) // 2
            of_second[pairs] = reduced_cost[pairs] - of_first[pairs]
    return least, (of_first, of_second)


def slack_mask(stages: OpenStages, priced: Priced) -> Mask:
    """The stages that have reduced costs within the slack on all their devices."""
    loads, reduced_cost = priced.loads, priced.reduced_cost
    least = numpy.full(len(stages.start), NO_COST)
    numpy.minimum.at(least, loads.first, reduced_cost)
    pairs = loads.second >= 0
    numpy.minimum.at(least, loads.second[pairs], reduced_cost[pairs])
    return (least < NO_COST) & (least * stages.used <= priced.slack)
