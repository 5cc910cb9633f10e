"""The least trips of ways within the slack: a dynamic programme from the end of the trunk to its beginning."""

import numpy

from planner.bounds.device_loads import OpenStages
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers
from planner.bounds.packing_slack import BUCKETS, NO_COST, Ways


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

    def raise_trips(self) -> None:
        """Raise the trips of all open stages."""
        stages, b = self.stages, self.boundaries
        self.before = self._before()
        self.waste = numpy.full((b.size + 1, b.replicas + 1, self.slots + 1, BUCKETS), NO_COST)
        over, anywhere = stages.trip.copy(), stages.trip_anywhere.copy()
        for stage in self.ways.in_order(backwards=True):
            over[stage], anywhere[stage] = self._go_on(stage)
        for raised, found in ((stages.trip, over), (stages.trip_anywhere, anywhere)):
            numpy.maximum(raised, found, out=raised)
        stages.is_open &= stages.trip_anywhere < NEVER

    def _before(self) -> Integers:
        """[boundary, most slots used]: the least waste of the stages up to there."""
        stages, ways = self.stages, self.ways
        found = numpy.full((self.boundaries.size + 1, self.slots + 1), NO_COST)
        found[0] = 0
        for stage in ways.in_order():
            start, end, used = (int(column[stage]) for column in (stages.start, stages.end, stages.replicas))
            beyond = found[start, : self.slots + 1 - used] + min(int(ways.least[stage]) * used, NO_COST)
            numpy.minimum(found[end, used:], beyond, out=found[end, used:])
        least: Integers = numpy.minimum.accumulate(numpy.minimum(found, NO_COST), axis=1)
        return least

    def _go_on(self, stage: int) -> tuple[int, int]:
        """The least trips of a stage, if the next is on other devices, or anywhere; and the ways that begin with it."""
        stages, b = self.stages, self.boundaries
        start, end, used = (int(column[stage]) for column in (stages.start, stages.end, stages.replicas))
        own = min(int(self.ways.least[stage]) * used, NO_COST)
        left = self.before[start, : self.slots + 1 - used]
        inside = int(stages.forward[stage] + stages.returning[stage])
        if end == b.size:
            alone = numpy.full((self.slots + 1 - used, 1), NO_COST)
            alone[0] = own
            self._put(stage, numpy.array([inside]), waste=alone, may_share=True)
            return 0, 0
        over, anywhere = NEVER, NEVER
        for behind in (*b.allowed, 0):
            hop = int(b.returning_hops[end, used, behind]) if behind else 0
            waste = self.waste[end, behind, : self.slots + 1 - used] + own
            waste = numpy.where(waste + left[::-1][:, None] <= self.slack, waste, NO_COST)
            buckets = numpy.flatnonzero(waste.min(axis=0) < NO_COST)
            if not len(buckets):
                continue
            trips = buckets * self.step + hop
            anywhere = min(anywhere, int(trips[0]))
            over = min(over, int(trips[0])) if behind else over
            self._put(stage, trips + inside, waste=waste[:, buckets], may_share=behind > 0)
        return over, anywhere

    def _put(self, stage: int, times: Integers, *, waste: Integers, may_share: bool) -> None:
        """Ways that begin with the stage: on other devices than the stage before, or on its device."""
        start, used = int(self.stages.start[stage]), int(self.stages.replicas[stage])
        target = numpy.minimum(times // self.step, BUCKETS - 1)
        for place in (used, 0) if may_share and self.boundaries.chunks > 1 else (used,):
            numpy.minimum.at(self.waste[start, place, used:].T, target, waste.T)
