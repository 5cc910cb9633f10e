"""The least waste of a way through the trunk: a dynamic programme over boundaries, slots and heads.

With prices on layers every load of a device has a value, and what it lacks to the largest value is its *waste*. A plan
cannot waste more than `slack` on all devices. A stage on r replicas causes at least r x half of the least waste of the
loads that hold it (all of it where a device holds nothing else); which loads are in time depends on its head.
"""

from dataclasses import dataclass

import numpy

from planner.bounds.device_loads import DeviceLoads, Mask, OpenStages
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers

NO_COST = 1 << 50
"""More waste than any plan can have."""

BUCKETS = 64
"""Heads are rounded down to so many values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Loads with their waste, and how much a plan may waste."""

    loads: DeviceLoads
    waste: Integers
    slack: int


class Ways:
    """The ways through the trunk, stage by stage, that waste no more than the slack."""

    def __init__(self, stages: OpenStages, priced: Priced) -> None:
        self.stages, self.priced = stages, priced
        boundaries = self.boundaries = stages.boundaries
        self.slots = min(boundaries.chunks * boundaries.num_devices, boundaries.size * boundaries.replicas)
        loads, waste = priced.loads, priced.waste
        self.pairs = loads.second >= 0
        half = numpy.where(self.pairs, waste // 2, waste)
        self.halves = half
        self.least = numpy.full(len(stages.start), NO_COST)
        numpy.minimum.at(self.least, loads.first, half)
        numpy.minimum.at(self.least, loads.second[self.pairs], half[self.pairs])
        self.step = -(-(2 * int(stages.head[stages.is_open].max(initial=0)) + stages.deadline // 20 + 1) // BUCKETS)
        self._rate()

    def _rate(self) -> None:
        """Per stage the least waste by bucket of its head, that after a stage on its device, and where that may be."""
        stages, loads, half = self.stages, self.priced.loads, self.halves
        self.costs = numpy.full((len(stages.start), BUCKETS), NO_COST)
        self.following = numpy.full(len(stages.start), NO_COST)
        self.may_follow = numpy.zeros((len(stages.start), self.boundaries.replicas + 1), dtype=numpy.bool_)
        apart = self.pairs & ~loads.follows
        behind = loads.second[loads.follows]
        for stage, latest, which in (
            (loads.first, loads.first_latest, slice(None)),
            (loads.second, loads.second_latest, apart),
        ):
            bucket = numpy.clip(latest[which] // self.step, 0, BUCKETS - 1)
            numpy.minimum.at(self.costs, (stage[which], bucket), half[which])
        self.costs = numpy.minimum.accumulate(self.costs[:, ::-1], axis=1)[:, ::-1]
        numpy.minimum.at(self.following, behind, half[loads.follows])
        self.may_follow[behind, stages.replicas[loads.first[loads.follows]]] = True

    def _ahead(self) -> Integers:
        """[boundary, slots used]: the least waste of the stages from there on, whatever their heads."""
        stages, size = self.stages, self.boundaries.size
        found = numpy.full((size + 1, self.slots + 1), NO_COST)
        found[size] = 0
        for stage in self.in_order(backwards=True):
            start, used = int(stages.start[stage]), int(stages.replicas[stage])
            place = found[start, : self.slots + 1 - used]
            beyond = found[stages.end[stage], used:] + min(int(self.least[stage]) * used, NO_COST)
            numpy.minimum(place, beyond, out=place)
        least: Integers = numpy.minimum(found, NO_COST)
        return least

    def in_order(self, *, backwards: bool = False) -> list[int]:
        """Open stages that the slots can hold, by their start."""
        stages = self.stages
        chosen = numpy.flatnonzero(stages.is_open & (stages.replicas <= self.slots) & (self.least < NO_COST))
        order = numpy.argsort(stages.start[chosen], kind="stable")
        return [int(stage) for stage in chosen[order[::-1] if backwards else order]]

    def narrow(self) -> bool:
        """Close the stages on no way within the slack, and raise the heads of the others; whether a way is left."""
        stages, size = self.stages, self.boundaries.size
        self.ahead = self._ahead()
        self.waste = numpy.full((size + 1, self.boundaries.replicas + 1, 2, self.slots + 1, BUCKETS), NO_COST)
        self.heads, self.soonest = (numpy.full(len(stages.start), NEVER) for _ in range(2))
        for stage in self.in_order():
            if stages.start[stage] == 0:
                self._begin(stage)
            else:
                self._go_on(stage)
        stages.is_open &= self.heads < NEVER
        for raised, found in ((stages.head, self.heads), (stages.soonest, self.soonest)):
            numpy.maximum(raised, numpy.where(stages.is_open, found, 0), out=raised)
        return bool(stages.is_open.any() and self.waste[size].min() <= self.priced.slack)

    def _begin(self, stage: int) -> None:
        stages = self.stages
        end, used = int(stages.end[stage]), int(stages.replicas[stage])
        waste = int(self.costs[stage, 0]) * used
        if waste + self.ahead[end, used] > self.priced.slack:
            return
        self.heads[stage] = self.soonest[stage] = 0
        place = self.waste[end, used, 0, used]
        bucket = min(int(stages.forward[stage]) // self.step, BUCKETS - 1)
        place[bucket] = min(place[bucket], waste)

    def _go_on(self, stage: int) -> None:
        """After every last stage: by its replicas, and whether the transfer to it was avoided (`late` by that much)."""
        start = int(self.stages.start[stage])
        for last in range(1, self.boundaries.replicas + 1):
            for late in (0, 1):
                before = self.waste[start, last, late]
                if before.min() < NO_COST:
                    self._append(stage, before, last=last, late=late)

    def _append(self, stage: int, before: Integers, *, last: int, late: int) -> None:
        """Add the stage to all ways that end where it starts. F of a sample avoids no two transfers in a row."""
        stages = self.stages
        end, used, forward = int(stages.end[stage]), int(stages.replicas[stage]), int(stages.forward[stage])
        hop = int(self.boundaries.forward_hops[int(stages.start[stage]), last, used])
        stays = bool(self.may_follow[stage, last])
        delay = hop if not stays else min(hop, int(self.boundaries.least_hops[last])) if late else 0
        ended = numpy.arange(BUCKETS) * self.step
        cost = self.costs[stage][numpy.minimum((ended + hop) // self.step, BUCKETS - 1)]
        if stays:
            cost = numpy.minimum(cost, self.following[stage])
        waste = before[: self.slots + 1 - used] + (cost * used)[None, :]
        waste = numpy.where(waste + self.ahead[end, used:][:, None] <= self.priced.slack, waste, NO_COST)
        buckets = numpy.flatnonzero(waste.min(axis=0) < NO_COST)
        if not len(buckets):
            return
        first = int(ended[buckets[0]])
        self.heads[stage] = min(self.heads[stage], first + hop)
        self.soonest[stage] = min(self.soonest[stage], first + delay)
        target = numpy.minimum((ended[buckets] + delay + forward) // self.step, BUCKETS - 1)
        place = self.waste[end, used, int(stays and not late), used:]
        numpy.minimum.at(place.T, target, waste[:, buckets].T)


def slack_mask(stages: OpenStages, priced: Priced) -> Mask:
    """The stages that waste no more than the slack on all their devices."""
    loads, waste = priced.loads, priced.waste
    least = numpy.full(len(stages.start), NO_COST)
    numpy.minimum.at(least, loads.first, waste)
    pairs = loads.second >= 0
    numpy.minimum.at(least, loads.second[pairs], waste[pairs])
    within: Mask = (least < NO_COST) & (least * stages.replicas <= priced.slack)
    return within
