"""Devices in classes that a bound does not tell apart: the least that a class, and a transfer between two, takes.

Any division of the devices gives figures that hold; the finer it is, the more they say.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy
from numpy.typing import NDArray

from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import Integers, prefix_sums
from planner.layout.costs import LayerWork
from profiles.cluster import Device, Link

Mask = NDArray[numpy.bool_]

_UNLINKED = NEVER // 4
"""The time of a transfer from a device to itself: there is none."""

MAX_RANKS = 64
"""Most microbatches that are distinguished by their place in time."""

MAX_TABLE = 1 << 21
"""Most entries of a table of boundaries, states and classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStages:
    """All stages that begin at one boundary on a device of one class and fit into its memory; one entry per end."""

    ends: Integers
    """[stage] the boundary behind the last layer."""
    forward: Integers
    """F."""
    returning: Integers
    """I, or B if that is shorter."""
    rest: Integers
    """The rest of the backward pass."""
    in_flight: Integers
    """F that may have started without their I having ended; 1 to M."""
    forced: Integers
    """Work of I and W that memory forces before the last F."""
    between: Integers
    """[stage, n]: work of I and W that memory forces between an F and the n-th after it; 0 for many microbatches."""

    def keep(self, which: Mask | Integers) -> "ClassStages":
        """The entries that a mask or indices choose."""
        return ClassStages(
            ends=self.ends[which],
            forward=self.forward[which],
            returning=self.returning[which],
            rest=self.rest[which],
            in_flight=self.in_flight[which],
            forced=self.forced[which],
            between=self.between[which],
        )


class Classes:
    """Classes of devices, one stage on each; a *state* says how many devices of every class are used."""

    def __init__(self, trunk: Trunk, members: Sequence[Sequence[str]]) -> None:
        """`members`: the names of the devices of every class; each device is in one class."""
        self.trunk, self.least = trunk, trunk.least
        self.count = self.least.problem.num_microbatches
        cluster = self.least.problem.cluster
        self.members: list[list[Device]] = [[cluster.by_name[name] for name in names] for names in members]
        self.num_classes = len(self.members)
        self.num_states = num_states(members)
        used = numpy.indices([len(names) + 1 for names in members]).reshape(self.num_classes, -1)
        self.room: list[Integers] = [
            numpy.flatnonzero(used[number] < len(names)) for number, names in enumerate(members)
        ]
        """Per class: the states in which one of its devices is free."""
        self.unit = [prod(len(names) + 1 for names in members[number + 1 :]) for number in range(self.num_classes)]
        """Per class: what one more of its devices adds to the number of a state."""
        self.forward = self._sums(lambda work: work.forward_ns)
        self.returning = self._sums(self.least.returning)
        self.backward = self._sums(lambda work: work.backward_ns)
        self.memory = [max(device.usable_bytes for device in devices) for devices in self.members]

    def _sums(self, figure: Callable[[LayerWork], int]) -> list[Integers]:
        """Per class: prefix sums over the trunk of the least work on its types."""
        columns = self.least.work_per_type(figure)
        return [
            prefix_sums([min(columns[name][layer] for name in names) for layer in self.trunk.path])
            for names in ({device.type for device in devices} for devices in self.members)
        ]

    @cached_property
    def hops(self) -> tuple[Integers, Integers]:
        """[boundary, from, to] and [boundary, to, from]: least time of an activation, and of its gradient back."""
        shape = (self.trunk.num_layers + 1, self.num_classes, self.num_classes)
        forward, backward = numpy.zeros(shape, dtype=numpy.int64), numpy.zeros(shape, dtype=numpy.int64)
        for a in range(self.num_classes):
            for b in range(self.num_classes):
                for boundary in range(1, self.trunk.num_layers):
                    forward[boundary, a, b] = self._transfer_ns(a, b, num_bytes=self.trunk.forward_bytes[boundary])
                    if self.trunk.returns[boundary]:
                        backward[boundary, a, b] = self._transfer_ns(
                            b, a, num_bytes=self.trunk.backward_bytes[boundary]
                        )
        return forward, backward

    @cached_property
    def slowest_hops(self) -> int:
        """No way through the trunk takes longer for all its transfers, there and back."""
        boundaries = [forward + backward for forward, backward in zip(*self.hops, strict=True)]
        return sum(int(times[times < _UNLINKED].max(initial=0)) for times in boundaries)

    def _transfer_ns(self, a: int, b: int, *, num_bytes: int) -> int:
        """No transfer of so many bytes from a device of class a to another one of class b is faster."""
        times = [
            self.least.transfer_ns(num_bytes) if link is None else link.latency_ns + link.moving_ns(num_bytes)
            for link in self._links[a][b]
        ]
        return min(times, default=_UNLINKED)

    @cached_property
    def _links(self) -> list[list[set[Link | None]]]:
        """[class, class]: the links between them, without their ends; None for devices without a direct one."""
        direct = {
            frozenset((link.a, link.b)): replace(link, a="a", b="b", duplex=True, message_overhead_ns=None)
            for link in self.least.problem.cluster.links
        }
        return [
            [
                {direct.get(frozenset((x.name, y.name))) for x in senders for y in receivers if x is not y}
                for receivers in self.members
            ]
            for senders in self.members
        ]

    @cached_property
    def stages(self) -> list[list[ClassStages]]:
        """[boundary, class]: the stages from there on a device of the class."""
        numbers = range(self.num_classes)
        return [[self._stages(start, number) for number in numbers] for start in range(self.trunk.num_layers)]

    def _stages(self, start: int, number: int) -> ClassStages:
        trunk, memory = self.trunk, self.memory[number]
        ends = numpy.arange(start + 1, trunk.num_layers + 1)
        forward, returning, backward, held, kept, state, stash = (
            sums[start + 1 :] - sums[start]
            for sums in (
                self.forward[number], self.returning[number], self.backward[number],
                trunk.held, trunk.kept, trunk.state, trunk.stash,
            )
        )  # fmt: skip
        received = numpy.array(trunk.backward_bytes[start + 1 :], dtype=numpy.int64) + trunk.forward_bytes[start]
        spare = memory - state - self.least.problem.options.receive_buffers * received
        in_flight = numpy.clip(numpy.where(held > 0, spare // numpy.maximum(held, 1), self.count), 1, self.count)
        rest = backward - returning
        forced = self._forced((held, kept, spare), work=(returning, rest))
        between = self._between((held, kept, spare), work=(returning, rest))
        found = ClassStages(
            ends=ends,
            forward=forward,
            returning=returning,
            rest=rest,
            in_flight=in_flight,
            forced=forced,
            between=between,
        )
        return found.keep(stash <= spare)

    def _forced(self, memory: tuple[Integers, Integers, Integers], *, work: tuple[Integers, Integers]) -> Integers:
        """Least work before the last F: a of I, b of W; (M - a) held + (a - b) kept within memory, b <= a < M."""
        (held, kept, spare), (returning, rest) = memory, work
        returned = numpy.arange(self.count, dtype=numpy.int64)[:, None]
        excess = (self.count - returned) * held + returned * kept - spare
        finished = numpy.where(kept > 0, -(-excess // numpy.maximum(kept, 1)), numpy.where(excess > 0, NEVER, 0))
        allowed = finished <= returned
        needed = returned * returning + numpy.clip(finished, 0, self.count) * rest
        forced: Integers = numpy.where(allowed, needed, NEVER // 8).min(axis=0)
        return forced

    def _between(self, memory: tuple[Integers, Integers, Integers], *, work: tuple[Integers, Integers]) -> Integers:
        """Per n: least work a of I and b of W with (n + 1 - a) held + (a - b) kept within memory, a <= n."""
        (held, kept, spare), (returning, rest) = memory, work
        found = numpy.zeros((len(held), self.count), dtype=numpy.int64)
        for n in range(self.count if self.count <= MAX_RANKS else 0):
            returned = numpy.arange(n + 1, dtype=numpy.int64)[:, None]
            open_stashes = (n + 1 - returned) * held
            finished = -(-(open_stashes + returned * kept - spare) // numpy.maximum(kept, 1))
            needed = returned * returning + numpy.where(kept > 0, numpy.clip(finished, 0, returned), 0) * rest
            found[:, n] = numpy.where((open_stashes <= spare) | (returned == n), needed, NEVER // 8).min(axis=0)
        return found


def propose(trunk: Trunk) -> list[list[list[str]]]:
    """Divisions of the devices into classes that are worth trying, the coarsest first.

    By type and memory, and by host as well, if tables hold that; else classes of like speed are merged until they do.
    """
    devices = trunk.least.problem.cluster.devices
    fine, coarse = (_alike(devices, hosts=hosts) for hosts in (True, False))
    found = [_merged(trunk, coarse)]
    if fits(trunk, fine) and len(fine) > len(coarse):
        found.append(fine)
    return [[[device.name for device in members] for members in division] for division in found]


def fits(trunk: Trunk, members: Sequence[Sequence[object]]) -> bool:
    """Whether tables hold that many states and classes."""
    return (trunk.num_layers + 1) * num_states(members) * len(members) <= MAX_TABLE


def _alike(devices: Iterable[Device], *, hosts: bool) -> list[list[Device]]:
    """The devices of every type, memory and, if asked for, host."""
    found: dict[tuple[str, int, str], list[Device]] = {}
    for device in devices:
        found.setdefault((device.type, device.usable_bytes, device.host if hosts else ""), []).append(device)
    return list(found.values())


def _merged(trunk: Trunk, division: list[list[Device]]) -> list[list[Device]]:
    """Classes next to each other in speed are made one, the closest first, until tables hold them."""
    columns = trunk.least.work_per_type(lambda work: work.forward_ns + work.backward_ns)
    speed = {name: sum(column) for name, column in columns.items()}
    division = sorted(division, key=lambda members: speed[members[0].type])
    while len(division) > 1 and not fits(trunk, division):
        speed_gaps = [speed[b[0].type] - speed[a[-1].type] for a, b in pairwise(division)]
        place = speed_gaps.index(min(speed_gaps))
        division[place : place + 2] = [division[place] + division[place + 1]]
    return division


def num_states(members: Sequence[Sequence[object]]) -> int:
    """How many states there are with these devices in classes."""
    return prod(len(names) + 1 for names in members)
