"""What stages take at the least that lie on so many devices of each type; the figures of the groups bound.

Samples cost what was measured for just the stage's share of a microbatch. Bounds that take the best share of every
layer on its own miss that 26 layers on 64 devices cannot all have it.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import SECOND, Integers, Least
from planner.bounds.typed_links import least_latencies, message_rates, ring_bandwidths
from profiles.model_profile import Layer, WidthBytes

Counts = tuple[int, ...]
"""Of each type one number."""


class StageFigures(NamedTuple):
    """Replicas of one type: [begin, end] figures, times in ns; `work` is `NEVER` where there is none or no room."""

    forward: Integers
    """F of a microbatch."""
    returning: Integers
    """The action that makes its gradient; 0 where some edge has no gradient."""
    ring: Integers
    """The synchronisation that may precede the last gradient's way back; 0 where some edge has none."""
    inside: Integers
    """F and the action that makes the gradient."""
    work: Integers
    """All microbatches, the synchronisation and the step after the last."""
    answered: Integers
    """All microbatches up to the last gradient, and the step."""
    filled: Integers
    """F that a replica can run before its first gradient is back."""
    drained: Integers
    """Backward passes that it can run between its last F and the gradient of that."""
    rounds: Integers
    """Turnarounds, one after the other, that memory asks for."""
    turned: Integers
    """What the replica runs in and between those turnarounds, and the step."""


class Partners(NamedTuple):
    """Stages beside a replica that are alike as to how fast it reaches them: [boundary] times in ns."""

    uses: tuple[Counts, ...]
    """The types, each used (1) or not (0), of such stages."""
    received: Integers
    """Receiving all that an F needs, or sending what it made."""
    sent: Integers
    """Sending a gradient."""
    occupied: Integers
    """What receiving all microbatches takes of the device itself."""
    answering: Integers
    """What all that goes both ways takes of it."""


class Replicas(NamedTuple):
    """What is known of a stage's replicas of one type."""

    figures: StageFigures
    partners: tuple[Partners, ...]


class StageLayouts:
    """The ways in which replicas of a stage may lie on the types, and figures of such stages."""

    def __init__(self, least: Least, trunk: Trunk) -> None:
        self.least, self.trunk, self.count = least, trunk, least.problem.num_microbatches
        self.types = sorted(least.types, key=lambda name: (least.types[name], name))
        self.returns = all(trunk.returns)
        cluster = least.problem.cluster
        self.rings = ring_bandwidths(cluster, self.types)
        self.rates, self.latencies = message_rates(cluster), least_latencies(cluster)

    @cached_property
    def alike(self) -> dict[tuple[int, int, Counts], list[Counts]]:
        """By replicas, width, and types that are used (1 or 0): devices of each type."""
        found: dict[tuple[int, int, Counts], list[Counts]] = {}
        for count, width in product(self.least.problem.allowed_replicas, self.least.widths):
            for split in self._splits(count, width=width):
                used = tuple(int(number > 0) for number in split)
                found.setdefault((count, width, used), []).append(tuple(number * width for number in split))
        return found

    def _splits(self, replicas: int, *, width: int) -> Iterator[Counts]:
        *first, last = (self.least.types[name] // width for name in self.types)
        for counts in product(*(range(min(most, replicas) + 1) for most in first)):
            if 0 <= replicas - sum(counts) <= last:
                yield *counts, replicas - sum(counts)

    def stages(self) -> Iterator[tuple[Counts, list[Counts], list[Replicas]]]:
        """By types that are used: the devices of each, and replicas of each, of all stages as many and as wide."""
        for (replicas, width, used), taken in self.alike.items():
            names = [name for name, is_used in zip(self.types, used, strict=True) if is_used]
            bandwidth = max(int(self.rings[tuple(count // width for count in each)]) for each in taken)
            last = self._synchronisation(replicas, width=width, bandwidth=bandwidth)
            yield used, taken, [self._on_type(name, replicas=replicas, width=width, last=last) for name in names]

    def _on_type(self, device_type: str, *, replicas: int, width: int, last: Integers) -> Replicas:
        """`last`: the synchronisation."""
        least, count, returns = self.least, self.count, int(self.returns)
        works = [least.work_on(layer, device_type, width=width, replicas=replicas) for layer in self.trunk.path]
        forward, returning, backward = (
            _intervals([0 if work is None else figure(work) for work in works]) // replicas
            for figure in (lambda work: work.forward_ns, least.returning, lambda work: work.backward_ns)
        )
        before, after = least.overhead
        forward, returning, backward = forward + before, returning + after * returns, backward + after
        step = self._step(device_type, replicas=replicas, width=width)
        fitting, is_out = self._fitting(device_type, replicas=replicas, width=width)
        rounds, rest = numpy.divmod(count - 1, fitting)
        drains = (fitting < count) & (not least.problem.options.split_backward)
        is_out = is_out | (_intervals([each is None for each in works]) > 0)
        figures = StageFigures(
            forward=forward,
            returning=returns * returning,
            ring=returns * last,
            inside=forward + returning,
            work=numpy.where(is_out, NEVER, numpy.minimum(count * (forward + backward) + step + last, NEVER)),
            answered=count * (forward + returning) + step,
            filled=(fitting - 1) * forward,
            drained=numpy.where(drains, (fitting - 1) * returning, NEVER),
            rounds=rounds + 1,
            turned=(rounds + 1) * (forward + returning) + rest * forward + step,
        )
        return Replicas(figures, tuple(self._partners(device_type, replicas=replicas)))

    def _partners(self, device_type: str, *, replicas: int) -> Iterator[Partners]:
        """Those that are alike, one after the other; every message takes a link's latency."""
        uses = dict.fromkeys(used for _, _, used in self.alike)
        alike: dict[int, list[Counts]] = {}
        for used in uses:
            names = [name for name, is_used in zip(self.types, used, strict=True) if is_used]
            alike.setdefault(max(self.rates[device_type, name] for name in names), []).append(used)
        latency, is_busy = self.latencies[device_type], self.returns and not self.least.problem.cluster.overlap
        inner = numpy.array([0, *[1] * (self.trunk.num_layers - 1), 0])
        for rate, members in alike.items():
            forward, backward = (
                inner * (latency + numpy.array([size * SECOND // (replicas * max(rate, 1)) for size in sizes]))
                for sizes in (self.trunk.forward_bytes, self.trunk.backward_bytes)
            )
            sent = backward * self.returns
            occupied, answering = (self.count * each * is_busy for each in (forward, forward + sent))
            yield Partners(tuple(members), forward, sent, occupied, answering)

    def _step(self, device_type: str, *, replicas: int, width: int) -> Integers:
        """[begin, end] the optimizer's step of a device, beyond what every plan has after its barrier."""
        least, sharing = self.least, replicas if self.least.problem.may_shard else 1
        steps = _intervals([least.layers[layer].optimizer_ns(device_type) for layer in self.trunk.path])
        counted = least.optimizer_ns - least.problem.profile.optimizer_ns
        beyond: Integers = numpy.maximum(steps // (width * sharing) - counted, 0)
        return beyond

    def _synchronisation(self, replicas: int, *, width: int, bandwidth: int) -> Integers:
        """[begin, end] after the last action; nothing is counted where buckets leave before it."""
        sizes = _intervals([self.least.gradient_bytes_at(layer, width) for layer in self.trunk.path])
        if replicas == 1 or self.least.problem.options.synchronisation != "after":
            return 0 * sizes
        different, places = numpy.unique(sizes, return_inverse=True)
        times = [self.least.synchronisation_ns(int(size), replicas, bandwidth=bandwidth) for size in different]
        return numpy.array([min(each, NEVER) for each in times], dtype=numpy.int64)[places].reshape(sizes.shape)

    def _fitting(self, device_type: str, *, replicas: int, width: int) -> tuple[Integers, NDArray[numpy.bool_]]:
        """[begin, end] microbatches between F and I at most, and whether state and one exceed every device."""
        least, devices = self.least, self.least.problem.cluster.devices
        entries = [dict(least.entries(layer)).get(width) for layer in self.trunk.path]
        most = max(device.usable_bytes for device in devices if device.type == device_type)
        room = most - _intervals([least.states(layer).get(width, 0) for layer in self.trunk.path])
        held, stashes = (
            _intervals([0 if entry is None else size(entry) for entry in entries]) // replicas
            for size in (lambda entry: min(least.held_sizes(entry)), self._stash)
        )
        fitting = numpy.where(held > 0, room // numpy.maximum(held, 1), self.count)
        return numpy.clip(fitting, 1, self.count), stashes > room

    def _stash(self, entry: Layer | WidthBytes) -> int:
        """The least that is there of it while the backward of its stage runs."""
        return min(self.least.held_sizes(entry)) if self.least.problem.options.recompute_in_turn else entry.stash_bytes


def _intervals(values: Iterable[int]) -> Integers:
    """[begin, end] sums of what lies between two boundaries; 0 where the end is not behind the begin."""
    sums = numpy.concatenate([[0], numpy.cumsum(numpy.array(list(values), dtype=numpy.int64))])
    intervals: Integers = numpy.maximum(sums[None, :] - sums[:, None], 0)
    return intervals
