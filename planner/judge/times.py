"""When everything happens (section 3, and section 1 on links): a claimed timeline, checked equation by equation.

Every action, transfer and synchronisation has one equation for its start, in terms of the ends of others:

    action            the latest of: the action before it on its devices, what it needs of its own stage, what arrives;
                      it ends after what its stage costs, or when its host lets it (`host_pace`)
    transfer          ready at the end of its action; starts once each of its links has served those before it
    synchronisation   the end of the stage's last action; if bucketed, it queues like a transfer
    gathering         the latest of: the gathering before it, the action before it on each of its devices
    stash             a transfer: out at the end of its F; back once asked for, after what left before that action

A timeline that satisfies all of them is the only one: whatever takes time ends after it starts, and what takes none
depends on others without a cycle (`orders.deadlock` has ruled that out), so two such timelines could not differ for a
first time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy

from planner.judge.active_stages import Gathering
from planner.judge.device_orders import Booleans, Integers
from planner.judge.host_memory import transfers as stash_transfers
from planner.judge.host_pace import card_ends
from planner.judge.reading import Reading
from planner.judge.transfer_queue import TransferQueue, Transfers
from planner.simulation.timeline import PlayedActions, PlayedTransfers, Timeline

MAX_INCONSISTENCIES = 20
"""No more than this many are listed."""

MOST_NS = 2**61
"""Times from here on are not kept as 64-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a timeline amounts to, and which equations it breaks; its figures mean nothing if it breaks one."""

    makespan_ns: int
    """End of the iteration."""
    span_ns: int
    """Longest time from the start of the first to the end of the last action of a device."""
    bubble: float
    """1 - total work / (devices used x makespan)."""
    peak_bytes: Mapping[str, int]
    """Peak memory of every device used."""
    inconsistencies: tuple[str, ...]
    """One sentence for every equation that does not hold, `MAX_INCONSISTENCIES` at most."""


def check_times(reading: Reading, timeline: Timeline) -> Judgement:
    """Check every equation of `timeline` and add up its figures; the plan itself must be sound."""
    check = _Check(reading, timeline)
    found = tuple(islice(check.inconsistencies(), MAX_INCONSISTENCIES))
    return Judgement(
        makespan_ns=check.makespan_ns(),
        span_ns=check.span_ns(),
        bubble=check.bubble(),
        peak_bytes={device: use.peak_bytes for device, use in reading.memory.items()},
        inconsistencies=found,
    )


class _Check:
    """The equations, one method each. A slot is a place of a stage replica for a microbatch: [replicas, 3, M]."""

    def __init__(self, reading: Reading, timeline: Timeline) -> None:
        self.reading, self.timeline = reading, timeline
        self.orders, self.runner, self.replicas = reading.orders, reading.runner, reading.replicas
        self.count = reading.problem.num_microbatches
        self.exact: Any = numpy.int64 if _largest(reading, timeline) < MOST_NS else object
        self.is_readable = not any(True for _ in self.order())
        self.start, self.end = self._claimed_actions() if self.is_readable else (self._zeros(0), self._zeros(0))
        self.shape = len(self.replicas), 3, self.count
        self.slot = (self.runner * 3 + self.orders.place) * self.count + self.orders.microbatch
        durations = numpy.array(reading.durations, dtype=self.exact).reshape(len(self.replicas), -1, 4)
        self.expected = durations[self.runner, reading.variant, self.orders.kind]

    def _zeros(self, shape: int | tuple[int, ...]) -> Integers:
        return numpy.zeros(shape, dtype=self.exact)

    @cached_property
    def stage_end(self) -> Integers:
        """[S] when the last action of each stage ends; 0 where the order cannot be read."""
        ends = self._zeros(len(self.reading.plan.stages))
        numpy.maximum.at(ends, self.orders.stage[: len(self.end)], self.end)
        return ends

    def inconsistencies(self) -> Iterator[str]:
        """All equations; those of starts rely on the ends that the first ones check."""
        broken = list(islice(chain(self.order(), self.action_durations()), MAX_INCONSISTENCIES))
        if broken:
            yield from broken
            return
        self.end_at, self.start_at = self._zeros(self.shape), self._zeros(self.shape)
        self.end_at.reshape(-1)[self.slot], self.start_at.reshape(-1)[self.slot] = self.end, self.start
        transfers = Transfers(self.reading, self.timeline, exact=self.exact)
        broken = list(transfers.claims())
        broken += [] if broken else islice(transfers.readiness(self.end_at, self.stage_end), MAX_INCONSISTENCIES)
        yield from broken
        if not broken:
            self.queue = TransferQueue(self.reading, transfers, exact=self.exact)
            if not self.reading.problem.cluster.overlap:
                self.queue.take_actions(self.start, self.end)
            yield from list(self.offloads())
            yield from chain(self.synchronisations(), self.queue.starts(), self.groups())
            yield from list(self.gatherings())
            yield from chain(self.starts(self._needed(transfers)), self.ending())

    def order(self) -> Iterator[str]:
        """Every device runs the plan's actions in the plan's order."""
        schedule, actions = self.orders.schedule, self.timeline.actions
        if set(actions) != set(schedule):
            yield "the timeline's devices are not the plan's"
            return
        if isinstance(actions, PlayedActions) and _is_same(actions.device_orders.schedule, schedule):
            return
        for device, order in schedule.items():
            if [timed.action for timed in actions[device]] != list(order):
                yield f"the timeline's actions on {device} are not the plan's"

    def _claimed_actions(self) -> tuple[Integers, Integers]:
        """[actions] when each starts and ends."""
        actions = self.timeline.actions
        if isinstance(actions, PlayedActions) and _is_same(actions.device_orders.schedule, self.orders.schedule):
            return actions.start.astype(self.exact), actions.end.astype(self.exact)
        timed = [each for device in self.orders.devices for each in actions[device]]
        starts, ends = [each.start_ns for each in timed], [each.end_ns for each in timed]
        return numpy.array(starts, dtype=self.exact), numpy.array(ends, dtype=self.exact)

    def action_durations(self) -> Iterator[str]:
        """An action takes the time that its stage costs, or ends as soon as its host lets the card end it."""
        if self.is_readable:
            expected = self.expected if not self.reading.paces else self._card_ends() - self.start
            for row in _where(self.end - self.start != expected):
                taken = self.end[row] - self.start[row]
                yield f"{self._name(row)} takes {taken} ns instead of {expected[row]}"

    def _card_ends(self) -> Integers:
        """[actions] when each ends by the matrices of section 3, the slowest host of a group counting for all of it."""
        paces = numpy.array(self.reading.paces, dtype=self.exact).reshape(len(self.replicas), -1, 4, 2)
        own = paces[self.runner, self.reading.variant, self.orders.kind]
        ends = numpy.maximum(self.start + self.expected, card_ends(self.end, paces=own, first=self.orders.first))
        latest = self._zeros(self.shape).reshape(-1)
        numpy.maximum.at(latest, self.slot, ends)
        found: Integers = latest[self.slot]
        return found

    def _needed(self, transfers: Transfers) -> Integers:
        """[slots] when everything that an action needs is there, its own stage replica's earlier actions included."""
        needed, ends = self._zeros(self.shape), self.end_at
        for number, replica in enumerate(self.replicas):
            if "F" in replica.kinds:
                needed[number, 1] = ends[number, 0]
            if "I" in replica.kinds:
                needed[number, 2] = ends[number, 1]
        for channel, route in zip(self.reading.channels, self.reading.channel_routes, strict=True):
            if route is None:
                taken = slice(None) if channel.taken is None else list(channel.taken)
                arrivals = needed[channel.receiver, channel.target]
                arrivals[taken] = numpy.maximum(arrivals[taken], ends[channel.sender, channel.source][taken])
        transfers.deliver(needed)
        return needed

    def starts(self, needed: Integers) -> Iterator[str]:
        """An action starts as soon as what it needs is there and all devices of its group are free."""
        before = self._zeros(len(self.end))
        before[1:] = self.end[:-1]
        begins = self.orders.first[:-1]
        before[begins[begins < len(before)]] = 0
        free = needed.reshape(-1)
        numpy.maximum.at(free, self.slot, numpy.maximum(before, self.gathered_at))
        numpy.maximum.at(free, self.slot, self.travelled_at)
        if not self.reading.problem.cluster.overlap:
            free = self._after_transfers(free)
        expected = free[self.slot]
        for row in _where(self.start != expected):
            yield f"{self._name(row)} starts at {self.start[row]} ns, but it can at {expected[row]} ns"

    def _after_transfers(self, free: Integers) -> Integers:
        """Without overlap: what takes time lets the transfers of its devices go first that are ready by then."""
        is_lasting = (self.end_at > self.start_at).reshape(-1)
        now, size = free.copy(), 3 * self.count
        while True:
            later = now.copy()
            for number, replica in enumerate(self.replicas):
                part = slice(number * size, (number + 1) * size)
                for device in replica.group:
                    later[part] = numpy.maximum(later[part], self.queue.busy_until(device, now[part]))
            later = numpy.where(is_lasting, later, now)
            if (later == now).all():
                return now
            now = later

    def groups(self) -> Iterator[str]:
        """The devices of a group run an action at the same time."""
        differs = self.start_at.reshape(-1)[self.slot] != self.start
        differs |= self.end_at.reshape(-1)[self.slot] != self.end
        for number in sorted(set(self.runner[differs].tolist())):
            replica = self.replicas[number]
            yield f"the devices {', '.join(replica.group)} do not run stage {replica.stage} at the same times"

    def synchronisations(self) -> Iterator[str]:
        """A replicated stage synchronises once its last action has ended: at once, or queueing with the transfers."""
        claimed = {timed.stage: timed for timed in self.timeline.synchronisations}
        is_bucketed = self.reading.problem.options.synchronisation == "bucketed"
        surplus = len(self.timeline.synchronisations) - len(claimed)
        for number, ring in enumerate(self.reading.rings):
            timed, ready = claimed.pop(number, None), self.stage_end[number]
            if timed is None and not ring.duration_ns:
                continue
            if timed is None or timed.end_ns - timed.start_ns != ring.duration_ns:
                yield f"the synchronisation of stage {number} does not take {ring.duration_ns} ns"
            elif is_bucketed:
                self.queue.take_ring(number, ring, times=(ready, timed.start_ns, timed.end_ns))
            elif timed.start_ns != ready:
                yield f"the synchronisation of stage {number} does not start at the end of its last action"
        if claimed or surplus:
            yield "the timeline has a synchronisation too many"

    def gatherings(self) -> Iterator[str]:
        """Weights are gathered once asked for, one stage of a rank after the other; actions wait for theirs."""
        self.gathered_at = self._zeros(len(self.end))
        claimed = {Gathering(timed.stage, timed.position): timed for timed in self.timeline.gathers}
        surplus, reading = len(self.timeline.gathers) - len(claimed), self.reading
        for rank in reading.gathering_ranks:
            begins, ends, free = [int(self.orders.first[device]) for device in rank.devices], list[int](), 0
            for asked in rank.asked:
                stage, size = reading.plan.stages[asked.stage], reading.sizes[asked.stage]
                rows = [begin + asked.position - 1 for begin in begins if asked.position]
                start, timed = max([free, *(int(self.end[row]) for row in rows)]), claimed.pop(asked, None)
                free = start + reading.gathering_ns(stage, size)
                ends.append(free)
                if timed is None or (timed.start_ns, timed.end_ns) != (start, free):
                    what = f"stage {asked.stage} for action {asked.position}"
                    yield f"the gather of {what} is not from {start} ns to {free} ns"
            for begin in begins:
                self.gathered_at[begin : begin + len(rank.awaited)] = numpy.array(ends, dtype=self.exact)[rank.awaited]
        if claimed or surplus:
            yield "the timeline gathers a stage too often"

    def offloads(self) -> Iterator[str]:
        """A stash leaves at the end of its F and comes back once asked for; two actions wait for it."""
        claimed = {(each.stage, each.microbatch, each.device, each.is_back): each for each in self.timeline.offloads}
        surplus = len(self.timeline.offloads) - len(claimed)
        left, returned = self._zeros(len(self.end)), self._zeros(len(self.end))
        for stash, is_back, route in stash_transfers(self.reading.stashes):
            timed = claimed.pop((stash.stage, stash.microbatch, stash.device, is_back), None)
            ready = max(self.end[stash.fetched - 1], left[stash.fetched]) if is_back else self.end[stash.made]
            if timed is None or (timed.num_bytes, timed.ready_ns) != (stash.num_bytes, ready):
                what = f"microbatch {stash.microbatch} of stage {stash.stage} on {stash.device}"
                yield f"the stash of {what} is not ready at {ready} ns to travel {'back' if is_back else 'out'}"
                continue
            if timed.end_ns - timed.start_ns != route.time_ns:
                yield f"a stash of stage {stash.stage} on {stash.device} does not travel for {route.time_ns} ns"
            self.queue.take_stash(stash, route, is_back=is_back, times=timed[-3:])
            waiting, row = (returned, stash.needed) if is_back else (left, stash.freed)
            waiting[row] = max(waiting[row], timed.end_ns)
        self.travelled_at = numpy.maximum(left, returned)
        if claimed or surplus:
            yield "the timeline moves a stash too often"

    def ending(self) -> Iterator[str]:
        """The timeline's makespan is the end of all that happens, plus what follows it."""
        if self.timeline.makespan_ns != self.makespan_ns():
            yield f"the timeline says makespan {self.timeline.makespan_ns} ns, but ends at {self.makespan_ns()} ns"

    def makespan_ns(self) -> int:
        """End of the last action, synchronisation or finished gradient, then what devices lost, and the optimizer's."""
        ends = [int(self.end.max(initial=0)), *(timed.end_ns for timed in self.timeline.synchronisations)]
        if any(stage.weight_grad_replicas for stage in self.reading.plan.stages):
            ends += [sent.end_ns for sent in self.timeline.transfers if sent.microbatch == self.count]
        lost = (self.reading.lost_ns(device, self.stage_end) for device in self.reading.slowed_devices)
        return max(ends) + max(lost, default=0) + self.reading.closing_ns

    def span_ns(self) -> int:
        """Longest time from the start of the first to the end of the last action of a device."""
        first = self.orders.first
        is_used = (first[1:] > first[:-1]) & self.is_readable
        spans = self.end[first[1:][is_used] - 1] - self.start[first[:-1][is_used]]
        return int(spans.max(initial=0))

    def bubble(self) -> float:
        """1 - total work / (devices used x makespan); 0 where nothing takes time."""
        work = sum(int(part.sum()) for part in numpy.split(self.end - self.start, self.orders.first[1:-1]))
        available = len({device for each in self.replicas for device in each.group}) * self.makespan_ns()
        return (available - work) / available if available else 0.0

    def _name(self, row: int) -> str:
        return f"{self.orders.action(row)} on {self.orders.device_name(row)}"


def _largest(reading: Reading, timeline: Timeline) -> int:
    """No time that is claimed or expected is larger."""
    if isinstance(timeline.actions, PlayedActions):
        claimed = [int(timeline.actions.end.max(initial=0))]
    else:
        claimed = [abs(time) for order in timeline.actions.values() for _, *both in order for time in both]
    if not isinstance(timeline.transfers, PlayedTransfers):
        claimed += [abs(time) for sent in timeline.transfers for time in sent[-3:]]
    claimed += [abs(timed.end_ns) for timed in timeline.synchronisations]
    claimed += [abs(timed.end_ns) for timed in timeline.gathers]
    claimed += [abs(timed.end_ns) for timed in timeline.offloads]
    channel_routes = zip(reading.channels, reading.channel_routes, strict=True)
    moving = [route.time_ns(channel.num_bytes) for channel, route in channel_routes if route is not None]
    return max([0, *claimed, *chain(*chain(*reading.durations)), *moving])


def _is_same(played: Mapping[str, object], schedule: Mapping[str, object]) -> bool:
    """Whether these are the very same orders of the same devices."""
    return list(played) == list(schedule) and all(played[device] is schedule[device] for device in schedule)


def _where(wrong: Booleans) -> list[int]:
    """The first places where something is wrong."""
    found: list[int] = numpy.flatnonzero(wrong)[:MAX_INCONSISTENCIES].tolist()
    return found
