"""Transfers between devices, and the order in which links serve them (section 1, "Cluster").

Two transfers never share a link at once. In order of readiness (ties by stage, microbatch, forward before backward,
then by replica and by what it sends first) each starts as soon as every link of its route is free of the earlier ones.
What takes no time occupies nothing. Where transfers do not overlap computation, the two devices are held like links.
"""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy

from planner.judge.device_orders import Integers
from planner.judge.host_memory import HostRoute, OffloadedStash
from planner.judge.reading import Reading
from planner.judge.synchronisation import Ring
from planner.judge.traffic import BEFORE_FIRST, EVERY, Channel
from planner.simulation.timeline import PlayedTransfers, Timeline

_Ends = tuple[str, str, int, int, str]
"""Devices, stages and direction, as a timeline states them."""

_MOST_TOLD = 20
"""No more transfers than this are said to be wrong in one way."""


class Transfers:
    """What a timeline claims about the transfers that the plan makes: N of them, channel by channel.

    A channel from one device to another has an entry per microbatch, one that comes once a single entry.
    """

    def __init__(self, reading: Reading, timeline: Timeline, *, exact: Any) -> None:
        self.reading, self.timeline, self.exact = reading, timeline, exact
        self.count = reading.problem.num_microbatches
        self.remote = [number for number, route in enumerate(reading.channel_routes) if route is not None]
        taken = [self._microbatches(number) for number in self.remote]
        lengths = list(map(len, taken))
        offsets = numpy.concatenate([[0], numpy.cumsum(numpy.array(lengths, dtype=numpy.int64))]).tolist()
        self.part = {number: slice(offsets[i], offsets[i + 1]) for i, number in enumerate(self.remote)}
        self.channel = numpy.repeat(numpy.array(self.remote, dtype=numpy.int64), lengths)
        self.microbatch = numpy.concatenate([numpy.zeros(0, dtype=numpy.int64), *taken])
        self.duration = numpy.zeros(offsets[-1], dtype=exact)
        for number, part in self.part.items():
            self.duration[part] = self._time_ns(number)
        self.ready, self.start, self.end = (numpy.zeros(offsets[-1], dtype=exact) for _ in range(3))

    def _channel(self, number: int) -> Channel:
        return self.reading.channels[number]

    def _microbatches(self, number: int) -> Integers:
        """Microbatches of a channel."""
        channel = self._channel(number)
        if channel.microbatch is not EVERY:
            return numpy.array([channel.microbatch], dtype=numpy.int64)
        return numpy.arange(self.count) if channel.taken is None else numpy.array(channel.taken, dtype=numpy.int64)

    def _time_ns(self, number: int) -> int:
        route = self.reading.channel_routes[number]
        assert route is not None
        return route.time_ns(self._channel(number).num_bytes)

    def _links(self, number: int) -> tuple[int, ...]:
        route = self.reading.channel_routes[number]
        assert route is not None
        return route.links

    def _ends(self, number: int) -> _Ends:
        channel = self._channel(number)
        sender, receiver = self.reading.replicas[channel.sender], self.reading.replicas[channel.receiver]
        direction = "backward" if channel.is_backward else "forward"
        return sender.head, receiver.head, sender.stage, receiver.stage, direction

    def _name(self, entry: int) -> str:
        source, target, _, _, direction = self._ends(int(self.channel[entry]))
        return f"the {direction} transfer from {source} to {target} for microbatch {self.microbatch[entry]}"

    def claims(self) -> Iterator[str]:
        """Every channel makes one transfer per microbatch, of its bytes, over its links, for its time."""
        sent = self.timeline.transfers
        if (
            isinstance(sent, PlayedTransfers)
            and len(sent)
            and all(channel.taken is None for channel in self.reading.channels)
        ):
            yield from self._read_played(sent)
        else:
            yield from self._read_listed()
        for entry in numpy.flatnonzero(self.end - self.start != self.duration)[:_MOST_TOLD].tolist():
            yield f"{self._name(entry)} has the wrong size, route or duration"

    def _read_played(self, sent: PlayedTransfers) -> Iterator[str]:
        """The claims of a timeline that keeps them as tables, row by row."""
        missing = {self._ends(number): number for number in self.remote if self._channel(number).microbatch is EVERY}
        surplus = [number for number in self.remote if self._channel(number).microbatch is not EVERY]
        for row, played in enumerate(sent.channels):
            ends = played.sender, played.receiver, played.from_stage, played.to_stage, played.direction
            number = missing.pop(ends, None)
            if number is None or sent.ready.shape[1] != self.count:
                yield f"the {ends[4]} transfer from {ends[0]} to {ends[1]} is not needed, or occurs twice"
                continue
            if (played.num_bytes, played.links) != (self._channel(number).num_bytes, self._links(number)):
                yield f"the {ends[4]} transfer from {ends[0]} to {ends[1]} has the wrong size, route or duration"
            part = self.part[number]
            self.ready[part], self.start[part] = sent.ready[row], sent.start[row]
            self.end[part] = self.start[part] + played.duration_ns
        for number in (*missing.values(), *surplus):
            yield f"{self._name(self.part[number].start)} is missing"

    def _read_listed(self) -> Iterator[str]:
        """The claims of a timeline that lists transfers one by one."""
        every, once = dict[_Ends, Integers](), dict[tuple[_Ends, int], int]()
        for number, part in self.part.items():
            microbatch, ends = self._channel(number).microbatch, self._ends(number)
            if microbatch is EVERY:
                entries = every.setdefault(ends, numpy.full(self.count, -1, dtype=numpy.int64))
                entries[self.microbatch[part]] = numpy.arange(part.start, part.stop)
            else:
                once[ends, microbatch] = part.start
        missing = numpy.ones(len(self.channel), dtype=numpy.bool_)
        for source, target, a, b, microbatch, direction, size, links, *times in self.timeline.transfers:
            ends, name = (source, target, a, b, direction), f"the {direction} transfer from {source} to {target} for "
            is_every = ends in every and 0 <= microbatch < self.count
            entry = int(every[ends][microbatch]) if is_every else once.get((ends, microbatch), -1)
            if entry < 0 or not missing[entry]:
                yield f"{name}microbatch {microbatch} is not needed, or occurs twice"
                continue
            channel = int(self.channel[entry])
            if (size, links) != (self._channel(channel).num_bytes, self._links(channel)):
                yield f"{name}microbatch {microbatch} has the wrong size, route or duration"
            missing[entry] = False
            self.ready[entry], self.start[entry], self.end[entry] = times
        for entry in numpy.flatnonzero(missing)[:_MOST_TOLD].tolist():
            yield f"{self._name(entry)} is missing"

    def readiness(self, end_at: Integers, stage_end: Integers) -> Iterator[str]:
        """A transfer is ready when its action ends: weights at the start, a finished gradient after the last action."""
        expected = numpy.zeros(len(self.channel), dtype=self.exact)
        for number, part in self.part.items():
            channel = self._channel(number)
            if channel.microbatch is EVERY:
                expected[part] = end_at[channel.sender, channel.source][self.microbatch[part]]
            elif channel.microbatch != BEFORE_FIRST:
                expected[part] = stage_end[self.reading.replicas[channel.sender].stage]
        for entry in numpy.flatnonzero(self.ready != expected)[:_MOST_TOLD].tolist():
            at = self.ready[entry]
            yield f"{self._name(entry)} is ready at {at} ns, but its action ends at {expected[entry]} ns"

    def deliver(self, needed: Integers) -> None:
        """The one that needs what arrives waits for it: `needed` [replicas, 3, M]."""
        for number, part in self.part.items():
            channel = self._channel(number)
            if channel.microbatch is EVERY or channel.microbatch == BEFORE_FIRST:
                taken = self.microbatch[part] if channel.microbatch is EVERY else slice(None)
                arrivals = needed[channel.receiver, channel.target]
                arrivals[taken] = numpy.maximum(arrivals[taken], self.end[part])


class _Queued(NamedTuple):
    """A synchronisation, or a stash on its way to a host or back."""

    stage: int
    microbatch: int
    is_backward: bool
    links: tuple[Hashable, ...]
    times: tuple[int, ...]
    """When it is ready, starts and ends."""


class TransferQueue:
    """Who starts when on links that are shared. Entries are the transfers, then synchronisations and stashes."""

    def __init__(self, reading: Reading, transfers: Transfers, *, exact: Any) -> None:
        self.reading, self.transfers, self.exact = reading, transfers, exact
        self.others: list[_Queued] = []
        self.actions: dict[str, tuple[Integers, Integers]] = {}
        self._busy: dict[str, tuple[Integers, Integers]] = {}

    def take_ring(self, stage: int, ring: Ring, *, times: tuple[int, int, int]) -> None:
        """Let a synchronisation queue: when it is ready, starts and ends."""
        self.others.append(_Queued(stage, self.transfers.count, True, tuple(ring.links), times))

    def take_stash(self, stash: OffloadedStash, route: HostRoute, *, is_back: bool, times: tuple[int, ...]) -> None:
        """Let the stash of a microbatch queue, out or back: when it is ready, starts and ends."""
        self.others.append(_Queued(stash.stage, stash.microbatch, is_back, route.links, times))

    def take_actions(self, start: Integers, end: Integers) -> None:
        """Without overlap: the actions that take time keep their devices from sending and receiving."""
        orders = self.reading.orders
        for number, device in enumerate(orders.devices):
            part = slice(int(orders.first[number]), int(orders.first[number + 1]))
            lasts = end[part] > start[part]
            self.actions[device] = start[part][lasts], end[part][lasts]

    def starts(self) -> Iterator[str]:
        """Each starts once it is ready and all it occupies is free of those before it."""
        transfers = self.transfers
        extra = [numpy.array([each.times[i] for each in self.others], dtype=self.exact) for i in range(3)]
        columns = zip((transfers.ready, transfers.start, transfers.end), extra, strict=True)
        ready, start, end = (numpy.concatenate(pair) for pair in columns)
        rank, expected = self._ranks(ready), ready.copy()
        for entries in self._sharers():
            order = entries[numpy.argsort(rank[entries])]
            expected[order[1:]] = numpy.maximum(expected[order[1:]], end[order[:-1]])
        for device, entries in self._held_devices().items():
            order = entries[numpy.argsort(rank[entries])]
            expected[order[1:]] = numpy.maximum(expected[order[1:]], end[order[:-1]])
            expected[entries] = numpy.maximum(expected[entries], _last_end(self.actions[device], ready[entries]))
            self._busy[device] = ready[order], end[order]
        for entry in numpy.flatnonzero(start != expected)[:_MOST_TOLD].tolist():
            stage, microbatch = self._subject(entry)
            yield (
                f"what stage {stage} sends for microbatch {microbatch}, ready at {ready[entry]} ns, "
                f"starts at {start[entry]} ns, but it can at {expected[entry]} ns"
            )

    def _subject(self, entry: int) -> tuple[int, int]:
        """Stage and microbatch of an entry."""
        transfers = self.transfers
        if entry >= len(transfers.channel):
            return self.others[entry - len(transfers.channel)][:2]
        channel = self.reading.channels[int(transfers.channel[entry])]
        return self.reading.replicas[channel.sender].stage, int(transfers.microbatch[entry])

    def _ranks(self, ready: Integers) -> Integers:
        """[entries] the turn of each: by readiness, stage, microbatch, direction, replica, and what is sent first.

        What is no transfer between stages comes after those, in the order in which it was taken.
        """
        transfers, channels, replicas = self.transfers, self.reading.channels, self.reading.replicas
        by_priority = sorted(  # a sender's channels are listed in the order in which they take their turns
            [
                *((each.is_backward, False, replicas[each.sender].number, n) for n, each in enumerate(channels)),
                *((each.is_backward, True, 0, len(channels) + n) for n, each in enumerate(self.others)),
            ]
        )
        priority_of = numpy.zeros(len(by_priority), dtype=numpy.int64)
        priority_of[[n for *_, n in by_priority]] = numpy.arange(len(by_priority))
        stage_of = numpy.array([replicas[channel.sender].stage for channel in channels], dtype=numpy.int64)
        stage = numpy.append(stage_of[transfers.channel], [each.stage for each in self.others]).astype(numpy.int64)
        own = [each.microbatch for each in self.others]
        microbatch = numpy.append(transfers.microbatch, own).astype(numpy.int64)
        priority = numpy.append(priority_of[transfers.channel], priority_of[len(channels) :])
        key = (stage * (transfers.count + 2) + microbatch + 1) * (len(by_priority) + 1) + priority
        if ready.dtype == object:
            order = numpy.array(sorted(range(len(key)), key=lambda n: (ready[n], key[n])), dtype=numpy.int64)
        else:
            order = numpy.lexsort((key, ready))
        rank = numpy.empty(len(key), dtype=numpy.int64)
        rank[order] = numpy.arange(len(key))
        return rank

    def _sharers(self) -> list[Integers]:
        """Entries that share a link, once for every set of them; those that take no time occupy nothing."""
        users: dict[Hashable, list[int]] = {}
        for number, part in self.transfers.part.items():
            if part.stop > part.start and self.transfers.duration[part.start] > 0:
                for link in self.reading.channel_routes[number].links:  # type: ignore[union-attr]
                    users.setdefault(link, []).append(number)
        total = len(self.transfers.channel)
        for index, (*_, links, (_, start, end)) in enumerate(self.others):
            for link in links if end > start else ():
                users.setdefault(link, []).append(-1 - index)
        return [self._entries(numbers, total=total) for numbers in sorted({tuple(each) for each in users.values()})]

    def _entries(self, numbers: tuple[int, ...] | list[int], *, total: int) -> Integers:
        parts = [
            numpy.arange(self.transfers.part[n].start, self.transfers.part[n].stop) if n >= 0 else [total - 1 - n]
            for n in numbers
        ]
        return numpy.concatenate(parts).astype(numpy.int64)

    def _held_devices(self) -> dict[str, Integers]:
        """Without overlap: per device, the transfers that take time and begin or end there."""
        if self.reading.problem.cluster.overlap:
            return {}
        held: dict[str, list[int]] = {device: [] for device in self.reading.orders.devices}
        for number, part in self.transfers.part.items():
            if part.stop > part.start and self.transfers.duration[part.start] > 0:
                channel = self.reading.channels[number]
                held[self.reading.replicas[channel.sender].head].append(number)
                held[self.reading.replicas[channel.receiver].head].append(number)
        return {device: self._entries(numbers, total=0) for device, numbers in held.items() if numbers}

    def busy_until(self, device: str, times: Integers) -> Integers:
        """Without overlap: when the transfers of a device have ended that are ready at `times`."""
        if device not in self._busy:
            return times
        ready, end = self._busy[device]
        at = numpy.searchsorted(ready, times, side="right")
        return numpy.concatenate([numpy.zeros(1, dtype=self.exact), end])[at]


def _last_end(actions: tuple[Integers, Integers], ready: Integers) -> Integers:
    """When the last action ends that has started before `ready`; 0 if none has."""
    start, end = actions
    at = numpy.searchsorted(start, ready, side="left")
    return numpy.concatenate([numpy.zeros(1, dtype=end.dtype), end])[at]
