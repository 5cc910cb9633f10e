"""The least trips of ways within the slack: a dynamic programme from the end of the trunk to its beginning."""

import numpy

from planner.bounds.device_packing.device_loads import Mask, OpenStages
from planner.bounds.device_packing.reduced_cost_paths import BUCKETS, NO_COST, Ways, merge
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, always, require_time


class Trips:
    """The least trips that ways within the slack leave: from the end of an F to its gradient, by what follows.

    It goes from the end of the trunk to its beginning. A state is (boundary, replicas of the stage behind it or 0 if
    that shares the device of the stage before, slots used, time from the start of an F of that stage to the end of its
    I); kept is the least waste.
    """

    def __init__(self, stages: OpenStages, ways: Ways) -> None:
        self.stages, self.ways, self.slack = stages, ways, ways.priced.slack
        self.boundaries, self.slots = ways.boundaries, ways.slots
        self.step = -(-(2 * int(stages.trip[stages.is_open].max(initial=0)) + 1) // BUCKETS)

    def raise_trips(self, *, has_time: HasTime = always) -> None:
        """Raise the trips of all open stages. Raises InterruptedStepError without time."""
        stages, b = self.stages, self.boundaries
        self.before = self._before()
        self.waste = numpy.full((b.size + 1, b.replicas + 1, self.slots + 1, BUCKETS), NO_COST)
        over, anywhere = stages.trip.copy(), stages.trip_anywhere.copy()
        for group in self.ways.groups(backwards=True):
            require_time(has_time)
            over[group], anywhere[group] = self._go_on(group)
        for raised, found in ((stages.trip, over), (stages.trip_anywhere, anywhere)):
            numpy.maximum(raised, found, out=raised)
        stages.is_open &= stages.trip_anywhere < NEVER

    def _before(self) -> Integers:
        """[boundary, most slots used]: the least waste of the stages up to there."""
        stages, ways = self.stages, self.ways
        found = numpy.full((self.boundaries.size + 1, self.slots + 1), NO_COST)
        found[0] = 0
        for group in ways.groups():
            start, used, ends = int(stages.start[group[0]]), int(stages.replicas[group[0]]), stages.end[group]
            own = numpy.minimum(ways.least[group] * used, NO_COST)
            beyond = found[start, : self.slots + 1 - used][None, :] + own[:, None]
            found[ends, used:] = numpy.minimum(found[ends, used:], beyond)
        least: Integers = numpy.minimum.accumulate(numpy.minimum(found, NO_COST), axis=1)
        return least

    def _go_on(self, group: Integers) -> tuple[Integers, Integers]:
        """The least trips of stages, if the next is on other devices, or anywhere; and the ways that begin with them.

        The stages have one start and number of replicas.
        """
        stages, b = self.stages, self.boundaries
        start, used, ends = int(stages.start[group[0]]), int(stages.replicas[group[0]]), stages.end[group]
        own = numpy.minimum(self.ways.least[group] * used, NO_COST)
        left = self.before[start, : self.slots + 1 - used][::-1]
        inside = stages.forward[group] + stages.returning[group]
        over, anywhere = numpy.full(len(group), NEVER), numpy.full(len(group), NEVER)
        over[ends == b.size] = anywhere[ends == b.size] = 0
        for place in numpy.flatnonzero(ends == b.size).tolist():
            alone = numpy.full((1, self.slots + 1 - used, 1), NO_COST)
            alone[0, 0] = own[place]
            self._put(group[0], alone, shift=inside[place : place + 1] // self.step, may_share=True)
        for behind in (*b.allowed, 0):
            hops = b.returning_hops[ends, used, behind] if behind else numpy.zeros(len(group), dtype=numpy.int64)
            waste = self.waste[ends, behind, : self.slots + 1 - used] + own[:, None, None]
            waste[waste + left[None, :, None] > self.slack] = NO_COST
            waste[ends == b.size] = NO_COST
            is_way: Mask = numpy.any(waste < NO_COST, axis=1)
            found: Mask = numpy.any(is_way, axis=1)
            if not found.any():
                continue
            trips = is_way[found].argmax(axis=1) * self.step + hops[found]
            anywhere[found] = numpy.minimum(anywhere[found], trips)
            if behind:
                over[found] = numpy.minimum(over[found], trips)
            self._put(group[0], waste[found], shift=(hops + inside)[found] // self.step, may_share=behind > 0)
        return over, anywhere

    def _put(self, stage: int, waste: Integers, *, shift: Integers, may_share: bool) -> None:
        """Ways that begin with such a stage: on other devices than the stage before, or on its device."""
        start, used = int(self.stages.start[stage]), int(self.stages.replicas[stage])
        for place in (used, 0) if may_share and self.boundaries.chunks > 1 else (used,):
            target = self.waste[start, place, used:]
            for own, moved in zip(waste, shift.tolist(), strict=True):
                merge(target, own, shift=moved)
