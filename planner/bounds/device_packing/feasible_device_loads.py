"""The rules for what a device of one kind can hold and be done in time with; docs/proofs/refutations.md has proofs."""

from dataclasses import replace

import numpy

from planner.bounds.device_packing.activation_lifetime import ActivationLifetime, StayTimes, in_flight, rounds
from planner.bounds.device_packing.device_loads import (
    FULL,
    PAIRS_AT_ONCE,
    DeviceLoads,
    Mask,
    Numbers,
    OpenStages,
    join_loads,
    parts_up,
)
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, always, require_time


def list_loads(stages: OpenStages, *, has_time: HasTime = always) -> DeviceLoads:
    """All loads of open stages with which a device of some kind is done in time.

    Raises InterruptedStepError without time.
    """
    found = list[DeviceLoads]()
    for number in range(len(stages.boundaries.kinds)):
        timely = _TimelyLoads(stages, number)
        found.append(timely.alone(numpy.flatnonzero(stages.is_open)))
        if stages.boundaries.chunks > 1:
            for k, j in stages.pairs():
                require_time(has_time)
                found.append(timely.beside(k, j))
    return join_loads(found)


def narrow_loads(stages: OpenStages, loads: DeviceLoads, *, has_time: HasTime = always) -> DeviceLoads:
    """Those of the loads whose stages are open and with which a device of their kind is still done in time.

    Raises InterruptedStepError without time.
    """
    is_open = stages.is_open[loads.first] & ((loads.second < 0) | stages.is_open[loads.second])
    found = list[DeviceLoads]()
    for number in range(len(stages.boundaries.kinds)):
        timely = _TimelyLoads(stages, number)
        own = numpy.flatnonzero(is_open & (loads.kind == number))
        pairs = own[loads.second[own] >= 0]
        found.append(timely.alone(loads.first[own[loads.second[own] < 0]].astype(numpy.int64)))
        for begin in range(0, len(pairs), PAIRS_AT_ONCE):
            require_time(has_time)
            part = pairs[begin : begin + PAIRS_AT_ONCE]
            k, j = (column[part].astype(numpy.int64) for column in (loads.first, loads.second))
            found.append(timely.beside(k, j))
    return join_loads(found)


class _TimelyLoads:
    """Loads of a device of one kind: its own times and memory, and the least of any device elsewhere."""

    def __init__(self, stages: OpenStages, number: int) -> None:
        self.anywhere, self.own, self.number = stages, stages.on(number), number
        self.count, self.deadline, self.memory = stages.boundaries.count, stages.deadline, self.own.memory

    def alone(self, chosen: Integers) -> DeviceLoads:
        """Devices with one stage."""
        own = self.own
        free = self.memory - own.static
        filled = in_flight(free, own.held, count=self.count) * (own.held + (own.replicas > 1))
        cycle = own.forward + own.turnaround + own.all_backward
        busy = numpy.maximum(own.work, cycle) + own.synchronisation
        latest = (self.deadline - numpy.maximum(busy, self._in_rounds()))[chosen]
        loads = DeviceLoads(
            first=chosen.astype(numpy.int32),
            second=numpy.full(len(chosen), -1, dtype=numpy.int32),
            first_latest=latest,
            second_latest=latest,
            follows=numpy.zeros(len(chosen), dtype=numpy.bool_),
            kind=numpy.full(len(chosen), self.number, dtype=numpy.int32),
            room=self._room(self._most(filled, free), since=own.head, until=own.tail)[chosen],
        )
        fits = (own.static + own.stash)[chosen] <= self.memory
        return loads.keep(fits & (own.head[chosen] <= latest))

    def _in_rounds(self) -> Integers:
        """With one stage on a device: so many microbatches are between F and I at a time, so many between I and W."""
        own, free = self.own, self.memory - self.own.static
        flight = in_flight(free, own.held, count=self.count)
        stay = numpy.minimum(own.forward + own.turnaround + own.returning, self.deadline + 1)
        in_rounds = rounds(self.count, flight, stay=stay, forward=own.forward) + own.tail
        idle = own.turnaround + own.forward - flight * (own.forward + own.rounded)
        left = own.tail - in_flight(free, own.kept, count=self.count) * (own.rest + own.rounded)
        whole = own.work + numpy.maximum(idle, 0) + numpy.maximum(left, own.synchronisation)
        turned = own.all_forward + own.all_returning + own.tail
        longest: Integers = numpy.maximum(numpy.maximum(in_rounds, whole), turned)
        return longest

    def beside(self, k: Integers, j: Integers) -> DeviceLoads:
        """Devices with the stages k and j, which begin where those end or later."""
        follows = self.own.start[j] == self.own.end[k]
        head = self._second_head(k, j, follows=follows)
        loads = DeviceLoads(
            first=k.astype(numpy.int32),
            second=j.astype(numpy.int32),
            first_latest=self._first_latest(k, j, head=head),
            second_latest=self._second_latest(k, j),
            follows=follows,
            kind=numpy.full(len(k), self.number, dtype=numpy.int32),
            room=numpy.zeros(len(k), dtype=numpy.int32),
        )
        kept = (self.own.head[k] <= loads.first_latest) & (head <= loads.second_latest)
        return self._in_memory(loads.keep(kept), k=k[kept], j=j[kept])

    def _second_head(self, k: Integers, j: Integers, *, follows: Mask) -> Integers:
        """The head of the second stage of a device."""
        head = self.own.head
        return numpy.where(follows, numpy.minimum(head[k] + self.own.forward[k], head[j]), head[j])

    def _in_memory(self, loads: DeviceLoads, *, k: Integers, j: Integers) -> DeviceLoads:
        """Those of the loads, with the stages k and j, that are in time with the microbatches that fit at a time."""
        own, lifetime = self.own, self._lifetime(k, j, follows=loads.follows)
        head, last = self._second_head(k, j, follows=loads.follows), self._last(k, j)
        first, second, nested = lifetime.first, lifetime.second, lifetime.nested
        tail = numpy.where(nested, first.tail, numpy.minimum(first.tail, second.tail))
        end = numpy.maximum(last, tail - lifetime.pending())
        turned = own.all_forward[k] + own.all_returning[k] + own.all_forward[j] + own.all_returning[j]
        busy = numpy.maximum(turned + tail, own.work[k] + own.work[j] + end)
        filled = lifetime.filled()
        busy = numpy.maximum(busy, lifetime.area(filled, tail=tail, last=last))
        holds = (head + busy > self.deadline) | (own.replicas[k] == 1)
        first_latest = numpy.minimum(loads.first_latest, self.deadline - lifetime.first_in_rounds() - first.tail)
        first_latest = numpy.where(holds, numpy.minimum(first_latest, self.deadline - busy), first_latest)
        second_latest = numpy.minimum(loads.second_latest, self.deadline - lifetime.second_in_rounds() - second.tail)
        after = own.work[k] + own.work[j] - lifetime.begun() + end
        wait, holds = own.forward[j] + own.turnaround[j], nested | (self._elsewhere(j) + after > self.deadline)
        second_latest = numpy.where(holds, numpy.minimum(second_latest, self.deadline - after - wait), second_latest)
        near = loads.follows & (own.replicas[k] == 1)
        first_latest = numpy.where(near, numpy.minimum(first_latest, second_latest - own.forward[k]), first_latest)
        kept = lifetime.fits & (own.head[k] <= first_latest) & (head <= second_latest)
        # bytes of replicas are rounded down, by less than one per microbatch
        rounded = self.count * (own.rounded[k] + own.rounded[j])
        room = self._room(
            self._most(filled + rounded, lifetime.free), since=numpy.minimum(own.head[k], head), until=tail
        )
        return replace(loads, first_latest=first_latest, second_latest=second_latest, room=room).keep(kept)

    def _most(self, filled: Integers, free: Integers) -> Integers:
        """Bytes held at a time: where microbatches leave different amounts, others may fill what the least do not."""
        return free if self.own.is_mixed else numpy.minimum(filled, free)

    def _room(self, filled: Integers, *, since: Integers, until: Integers) -> Numbers:
        """So many bytes from a head to what follows the last I, rounded up."""
        most, deadline = max(self.anywhere.boundaries.memory, 1), max(self.deadline, 1)
        part = parts_up(numpy.clip(filled, 0, most), most)
        time = parts_up(numpy.clip(self.deadline - since - until, 0, deadline), deadline)
        return (-(-part * time // FULL)).astype(numpy.int32)

    def _elsewhere(self, j: Integers) -> Integers:
        """When an I of j may have ended on any device: from then on I of the first stage may run."""
        stages = self.anywhere
        cycle = (
            stages.forward[j] + numpy.minimum(stages.turnaround[j], stages.turnaround_anywhere[j]) + stages.returning[j]
        )
        return stages.soonest[j] + cycle

    def _lifetime(self, k: Integers, j: Integers, *, follows: Mask) -> ActivationLifetime:
        """How long microbatches stay with both stages, and the memory left for them."""
        own, alone = self.own, self.own.replicas == 1
        inside = numpy.where(alone[k], own.entering[j], 0) + numpy.where(alone[j], own.leaving[k], 0)
        behind = numpy.where(
            alone[k] & alone[j], own.turnaround[j], numpy.minimum(own.turnaround, own.turnaround_anywhere)[j]
        )
        here, anywhere = (stages.forward[j] + stages.returning[j] for stages in (own, self.anywhere))
        turnaround = numpy.where(follows, numpy.where(alone[j], here, anywhere) + behind, own.turnaround[k])
        b = self.own.boundaries
        between = (b.forward[own.start[j]] - b.forward[own.end[k]]) // b.most
        near, far = own.returning[k] + own.tail[k], own.tail[j]
        return ActivationLifetime(
            count=self.count,
            deadline=self.deadline,
            nested=alone[k] | alone[j],
            free=self.memory - own.static[k] - own.static[j] + numpy.where(follows, inside, 0),
            between=between,
            first=self._times(k, turnaround=turnaround, tail=own.tail[k]),
            second=self._times(
                j, turnaround=own.turnaround[j], tail=numpy.where(follows, numpy.minimum(near, far), far)
            ),
        )

    def _times(self, chosen: Integers, *, turnaround: Integers, tail: Integers) -> StayTimes:
        own = self.own
        stay = numpy.minimum(own.forward[chosen] + turnaround + own.returning[chosen], self.deadline + 1)
        return StayTimes(
            stay=stay, forward=own.forward[chosen], rest=own.rest[chosen], tail=tail,
            held=own.held[chosen], stash=own.stash[chosen], kept=own.kept[chosen], rounded=own.rounded[chosen],
        )  # fmt: skip

    def _last(self, k: Integers, j: Integers) -> Integers:
        """After its last action a device synchronises one of its stages."""
        return numpy.minimum(self.own.synchronisation[k], self.own.synchronisation[j])

    def _first_latest(self, k: Integers, j: Integers, *, head: Integers) -> Integers:
        """All work; all before k synchronises; all before j does. A device may begin with j if k has other replicas."""
        own, work, synchronisation = self.own, self.own.work, self.own.synchronisation
        latest = self.deadline - work[k] - synchronisation[k]
        for busy in (
            work[k] + work[j] + self._last(k, j),
            work[k] + own.all_forward[j] + own.all_returning[j] + synchronisation[k],
            own.all_forward[k] + work[j] + synchronisation[j],
        ):
            holds = (head + busy > self.deadline) | (own.replicas[k] == 1)
            latest = numpy.where(holds, numpy.minimum(latest, self.deadline - busy), latest)
        return latest

    def _second_latest(self, k: Integers, j: Integers) -> Integers:
        """Work of j, and all backward passes, where k's may follow those of other replicas of j."""
        own, last, backward = self.own, self._last(k, j), self.own.all_backward[k]
        latest = self.deadline - own.work[j] - own.synchronisation[j]
        other = numpy.where(own.replicas[j] == 1, NEVER, self._elsewhere(j))
        for busy, wait in (
            (own.work[j] + backward + last, 0),
            (own.all_backward[j] + backward + last, own.forward[j] + own.turnaround[j]),
        ):
            holds = other + busy > self.deadline
            latest = numpy.where(holds, numpy.minimum(latest, self.deadline - busy - wait), latest)
        return latest
