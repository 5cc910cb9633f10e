"""What crosses the boundaries of the trunk, for every number of replicas on either side, and devices in kinds.

Only trunk layers that take time are distinguished (*keys*); index j counts the keys before boundary j.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy

from planner.bounds.device_packing.packed_forms import MAX_LEVELS, PackedForms, useful_levels
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Integers, Least, LeastWork, prefix_sums
from planner.bounds.stage_forms import form_times
from planner.errors import refused_certificate
from planner.layout.costs import overlap

_MAX_KINDS = 4
"""Kinds of devices that are distinguished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlikeDevices:
    """Devices that the packing bound does not tell apart: the least times of their types, the most memory of any."""

    members: list[tuple[str, int]]
    """Type and usable bytes."""
    count: int
    """Number of alike devices."""
    memory: int
    """Usable bytes of one of them, at most."""
    times: LeastWork
    """[form, boundary]: what the keys before a boundary take at least in a stage of a form."""


class Boundaries:
    """Prefix sums over the keys of a trunk, and the least times of transfers between them."""

    def __init__(self, least: Least, *, levels: int = 1) -> None:
        """`levels`: of what stages recompute where layers or microbatches decide; any number is right."""
        trunk = self.trunk = Trunk(least)
        self.levels = levels
        self.least = least
        self.count = least.problem.num_microbatches
        self.num_devices, self.replicas = least.num_devices, least.problem.max_replicas
        self.allowed = least.problem.allowed_replicas
        self.chunks = least.problem.options.max_stages_per_device
        work = numpy.diff(trunk.forward + trunk.backward)
        self.keys = [int(number) for number in numpy.flatnonzero(work > 0)]
        self.size = len(self.keys)
        self.forms = PackedForms(least, [trunk.path[key] for key in self.keys], levels=levels)
        self.times = self.forms.times()
        self.forward, self.returning, self.backward, self.held = (
            self.forms.on_all_devices(table)
            for table in (self.times.forward, self.times.returning, self.times.backward, self.forms.held)
        )
        """Of a microbatch in the keys before each boundary, on all devices together, in any form."""
        self.stash, self.kept, self.gradient = (
            prefix_sums(numpy.diff(sums)[self.keys]) for sums in (trunk.stash, trunk.kept, trunk.gradient)
        )
        shapes = product(self.allowed, least.widths)
        self.used = {
            replicas * width for replicas, width in shapes if width == 1 or replicas * width <= self.num_devices
        }
        """Numbers of devices that stages may take."""
        self.most = max({self.replicas} | self.used)
        everything = least.time.total.sum() - sum(least.time.total[trunk.path[key]] for key in self.keys)
        self.beside = self.count * int(everything)
        self.memory = max(device.usable_bytes for device in least.problem.cluster.devices)

    @property
    def is_scarce(self) -> bool:
        """Whether the devices lack memory for all states on half as many replicas as a stage may have."""
        return self.replicas * int(self.trunk.state[-1]) > 2 * self.num_devices * self.memory

    @cached_property
    def kinds(self) -> list[_AlikeDevices]:
        """Devices of like type and memory; where these are many, the fastest together, and so on, in equal parts."""
        found: dict[tuple[str, int], int] = {}
        for device in self.least.problem.cluster.devices:
            found[device.type, device.usable_bytes] = found.get((device.type, device.usable_bytes), 0) + 1
        every, width = range(len(self.least.layers)), self.least.widths[0]
        times = {
            name: form_times(self.least, every, width=width, recomputes=None, types=(name,))
            for name in self.least.types
        }
        work = {name: int(each.total[-1]) for name, each in times.items()}
        order = sorted(found, key=lambda alike: (work[alike[0]], alike))
        size = -(-len(order) // _MAX_KINDS)
        groups = [order[first : first + size] for first in range(0, len(order), size)]
        return [self._kind(group, count=sum(found[alike] for alike in group)) for group in groups]

    def _kind(self, group: list[tuple[str, int]], *, count: int) -> _AlikeDevices:
        return _AlikeDevices(
            members=group,
            count=count,
            memory=max(memory for _, memory in group),
            times=self.forms.times(dict(group)),
        )

    @cached_property
    def shares(self) -> tuple[list[list[int]], list[list[int]]]:
        """[senders][receivers], in parts of 1 / (senders x receivers) of a microbatch: every receiver gets at least
        the first from one sender; every sender gives at least the second to one receiver.
        """
        numbers = range(self.replicas + 1)
        received, given = ([[0] * len(numbers) for _ in numbers] for _ in range(2))
        for senders in numbers[1:]:
            for receivers in numbers[1:]:
                parts = [
                    [overlap(i, j, num_senders=senders, num_receivers=receivers)[0] for j in range(receivers)]
                    for i in range(senders)
                ]
                given[senders][receivers] = min(max(row) for row in parts)
                received[senders][receivers] = min(max(column) for column in zip(*parts, strict=True))
        return received, given

    def _gap(self, boundary: int) -> range:
        """The boundaries of the trunk between the key before this boundary and the key after it."""
        return range(self.keys[boundary - 1] + 1, self.keys[boundary] + 1)

    @cached_property
    def buffers(self) -> tuple[Integers, Integers]:
        """Per boundary the least receive buffers of all replicas behind it (activations) and before it (gradients)."""
        found = [numpy.zeros(self.size + 1, dtype=numpy.int64) for _ in range(2)]
        for sizes, table in zip((self.trunk.forward_bytes, self.trunk.backward_bytes), found, strict=True):
            for boundary in range(1, self.size):
                least = min(sizes[place] for place in self._gap(boundary))
                table[boundary] = self.least.problem.options.receive_buffers * least
        return found[0], found[1]

    def _hops(self, shares: list[list[int]], sizes: list[int]) -> Integers:
        """[boundary, senders, receivers]: least time of such a share of a microbatch.

        Layers without time between two keys may be stages of their own, on any number of replicas: there the least
        share of all counts.
        """
        numbers = range(1, self.replicas + 1)
        found = numpy.zeros((self.size + 1, self.replicas + 1, self.replicas + 1), dtype=numpy.int64)
        for boundary in range(1, self.size):
            num_bytes = min(sizes[place] for place in self._gap(boundary))
            times = [[self.least.transfer_ns(num_bytes * shares[q][r] // (q * r)) for r in numbers] for q in numbers]
            if len(self._gap(boundary)) > 1:
                least = min(min(row) for row in times)
                times = [[least for _ in row] for row in times]
            found[boundary, 1:, 1:] = times
        return found

    def share_ns(self, boundary: int, *, share: tuple[int, int], is_backward: bool) -> int:
        """Least time of a part of a microbatch, a fraction, between two devices, where two stages meet at a boundary.

        Where layers without time may lie between them, it may be the least part of all.
        """
        sizes = self.trunk.backward_bytes if is_backward else self.trunk.forward_bytes
        if len(self._gap(boundary)) > 1:
            hops = self.gradient_hops if is_backward else self.forward_hops
            return int(hops[boundary, 1, 1])
        return self.least.transfer_ns(sizes[self._gap(boundary)[0]] * share[0] // share[1])

    @cached_property
    def forward_hops(self) -> Integers:
        """[boundary, senders, receivers]: a replica that holds nothing of the stage before waits so long."""
        return self._hops(self.shares[0], self.trunk.forward_bytes)

    @cached_property
    def gradient_hops(self) -> Integers:
        """[boundary, senders, receivers]: the gradient of a receiver needs so long to one sender on another device."""
        return self._hops(self.shares[0], self.trunk.backward_bytes)

    @cached_property
    def returning_hops(self) -> Integers:
        """[boundary, senders, receivers]: a replica waits so long for both transfers between an F and its gradient."""
        return self._hops(self.shares[1], self.trunk.forward_bytes) + self._hops(
            self.shares[1], self.trunk.backward_bytes
        )

    @cached_property
    def least_hops(self) -> Integers:
        """Per number of receivers: the least of all times to receive."""
        if self.size < 2:
            return numpy.zeros(self.replicas + 1, dtype=numpy.int64)
        least: Integers = self.forward_hops[1 : self.size, 1:, :].min(axis=(0, 1))
        return least


def read_boundaries(least: Least, levels: object) -> Boundaries:
    """The boundaries with so many levels; ValueError if a certificate cannot have so many."""
    if type(levels) is not int or not (levels == 1 or (1 < levels <= MAX_LEVELS and useful_levels(least) > 1)):
        raise refused_certificate(
            f"levels = {str(levels)[:60]!r} is none from 1 to {MAX_LEVELS} that this problem can have"
        )
    return Boundaries(least, levels=levels)
