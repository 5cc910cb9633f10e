"""The least turnarounds of paths within the slack: a dynamic programme from the end of the trunk to its beginning."""

import numpy

from planner.bounds.device_packing.device_loads import Mask, OpenStages
from planner.bounds.device_packing.reduced_cost_paths import NO_COST, ReducedCostPaths, RoundedClock, merge
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, always, require_time


class PathTurnarounds:
    """The least turnarounds that paths within the slack leave: from the end of an F to its gradient, by what follows.

    It goes from the end of the trunk to its beginning. A state is (boundary, replicas of the stage behind it or 0 if
    that shares the device of the stage before, slots used, time from the start of an F of that stage to the end of its
    I); kept is the least reduced cost.
    """

    def __init__(self, stages: OpenStages, paths: ReducedCostPaths) -> None:
        self.stages, self.paths, self.slack = stages, paths, paths.priced.slack
        self.boundaries, self.slots = paths.boundaries, paths.slots
        most = 2 * int(stages.turnaround[stages.is_open].max(initial=0)) + 1
        self.clock = RoundedClock(most, slots=self.slots)

    def raise_turnarounds(self, *, has_time: HasTime = always) -> None:
        """Raise the turnarounds of all open stages. Raises InterruptedStepError without time."""
        stages, b = self.stages, self.boundaries
        self.before = self._before()
        self.reduced_cost = numpy.full((b.size + 1, b.replicas + 1, self.slots + 1, self.clock.size), NO_COST)
        self.reach = numpy.zeros((b.size + 1, b.replicas + 1), dtype=numpy.int64)
        over, anywhere = stages.turnaround.copy(), stages.turnaround_anywhere.copy()
        for group in self.paths.groups(backwards=True):
            require_time(has_time)
            over[group], anywhere[group] = self._go_on(group)
        for raised, found in ((stages.turnaround, over), (stages.turnaround_anywhere, anywhere)):
            numpy.maximum(raised, found, out=raised)
        stages.is_open &= stages.turnaround_anywhere < NEVER

    def _before(self) -> Integers:
        """[boundary, most slots used]: the least reduced cost of the stages up to there."""
        stages, paths = self.stages, self.paths
        found = numpy.full((self.boundaries.size + 1, self.slots + 1), NO_COST)
        found[0] = 0
        for group in paths.groups():
            start, used, ends = int(stages.start[group[0]]), int(stages.used[group[0]]), stages.end[group]
            own = numpy.minimum(paths.least[group] * used, NO_COST)
            beyond = found[start, : self.slots + 1 - used][None, :] + own[:, None]
            found[ends, used:] = numpy.minimum(found[ends, used:], beyond)
        return numpy.minimum.accumulate(numpy.minimum(found, NO_COST), axis=1)

    def _go_on(self, group: Integers) -> tuple[Integers, Integers]:
        """The least turnarounds of stages, if the next is on other devices, or anywhere; and the paths that begin with
        them.

        The stages have one start and number of replicas.
        """
        stages, b = self.stages, self.boundaries
        start, used, replicas = (int(column[group[0]]) for column in (stages.start, stages.used, stages.replicas))
        ends = stages.end[group]
        own = numpy.minimum(self.paths.least[group] * used, NO_COST)
        left = self.before[start, : self.slots + 1 - used][::-1]
        inside = stages.forward[group] + stages.returning[group]
        over, anywhere = numpy.full(len(group), NEVER), numpy.full(len(group), NEVER)
        over[ends == b.size] = anywhere[ends == b.size] = 0
        for place in numpy.flatnonzero(ends == b.size).tolist():
            alone = numpy.full((1, self.slots + 1 - used, 1), NO_COST)
            alone[0, 0] = own[place]
            self._put(group[0], alone, shift=self.clock.numbers(inside[place : place + 1]), may_share=True)
        for behind in (*b.allowed, 0):
            hops = b.returning_hops[ends, replicas, behind] if behind else numpy.zeros(len(group), dtype=numpy.int64)
            reach = int(self.reach[ends, behind].max(initial=0))
            if not reach:
                continue
            reduced_cost = self.reduced_cost[ends, behind, : self.slots + 1 - used, :reach] + own[:, None, None]
            reduced_cost[reduced_cost + left[None, :, None] > self.slack] = NO_COST
            reduced_cost[ends == b.size] = NO_COST
            is_path: Mask = numpy.any(reduced_cost < NO_COST, axis=1)
            found: Mask = numpy.any(is_path, axis=1)
            if not found.any():
                continue
            turnarounds = self.clock.times(is_path[found].argmax(axis=1)) + hops[found]
            anywhere[found] = numpy.minimum(anywhere[found], turnarounds)
            if behind:
                over[found] = numpy.minimum(over[found], turnarounds)
            shift = self.clock.numbers((hops + inside)[found])
            self._put(group[0], reduced_cost[found], shift=shift, may_share=behind > 0)
        return over, anywhere

    def _put(self, stage: int, reduced_cost: Integers, *, shift: Integers, may_share: bool) -> None:
        """Paths that begin with such a stage: on other devices than the stage before, or on its device."""
        stages = self.stages
        start, used, replicas = (int(column[stage]) for column in (stages.start, stages.used, stages.replicas))
        for place in (replicas, 0) if may_share and self.boundaries.chunks > 1 else (replicas,):
            target = self.reduced_cost[start, place, used:]
            reach = min(int(shift.max()) + reduced_cost.shape[2], self.clock.size)
            self.reach[start, place] = max(self.reach[start, place], reach)
            for own, moved in zip(reduced_cost, shift.tolist(), strict=True):
                merge(target, own, shift=moved)
