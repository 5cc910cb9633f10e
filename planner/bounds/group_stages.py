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
from planner.bounds.typed_links import port_bandwidths, ring_bandwidths
from profiles.model_profile import Layer, WidthBytes

Counts = tuple[int, ...]
"""Of each type one number."""


class StageFigures(NamedTuple):
    """Stages that lie in one way: [begin, end] figures, times in ns; `work` is `NEVER` where there is none or no room.

    On several types: the least of what meets some replica, the most of what each has to do, and the turnarounds of one.
    """

    forward: Integers
    """Receiving a microbatch, and F of it."""
    back: Integers
    """The action that makes its gradient, and sending this; 0 where some edge has no gradient."""
    closing: Integers
    """The same action, and the synchronisation after it."""
    sent: Integers
    """Sending the last gradient."""
    inside: Integers
    """F and the action that makes the gradient."""
    passed: Integers
    """Sending what F made."""
    work: Integers
    """Receiving the first, all microbatches, the synchronisation and the step after the last."""
    returned: Integers
    """Receiving the first, all microbatches up to the last gradient that has been sent, and the step."""
    own_work: Integers
    own_returned: Integers
    """The same two of the type whose turnarounds are counted; transfers that occupy devices may lie within these."""
    filled: Integers
    """F that a replica can run before its first gradient is back."""
    drained: Integers
    """Backward passes that it can run between its last F and the gradient of that."""
    rounds: Integers
    """Turnarounds, one after the other, that memory asks for."""
    turned: Integers
    """Receiving the first, what the replica runs in and between those turnarounds, and the step."""


_LEAST, _MOST = slice(6), slice(6, 8)
"""Figures of which a stage on several types has the least, and those of which it has the most."""


class StageLayouts:
    """The ways in which replicas of a stage may lie on the types, and figures of such stages."""

    def __init__(self, least: Least, trunk: Trunk) -> None:
        self.least, self.trunk, self.count = least, trunk, least.problem.num_microbatches
        self.types = sorted(least.types, key=lambda name: (least.types[name], name))
        self.returns = all(trunk.returns)
        cluster = least.problem.cluster
        self.rings, self.ports = ring_bandwidths(cluster, self.types), port_bandwidths(cluster)

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

    def stages(self) -> Iterator[tuple[list[Counts], StageFigures]]:
        """Figures of all stages with as many replicas, as wide and on the same types, and the devices of each type."""
        for (replicas, width, used), taken in self.alike.items():
            names = [name for name, is_used in zip(self.types, used, strict=True) if is_used]
            alone = [self._on_type(name, replicas=replicas, width=width) for name in names]
            bandwidth = max(int(self.rings[tuple(count // width for count in each)]) for each in taken)
            last = self._synchronisation(replicas, width=width, bandwidth=bandwidth)
            yield taken, self._mixed(alone, last)

    def _mixed(self, alone: list[StageFigures], last: Integers) -> StageFigures:
        """What meets replicas of some type, which may be the quickest, and what each does by itself.

        The turnarounds are those of the type whose memory asks for most of them: some replica is of that type.
        """
        rows = [numpy.stack(row) for row in zip(*alone, strict=True)]
        tightest = numpy.argmax([each.rounds for each in alone], axis=0)[None]
        mixed = StageFigures(
            *(row.min(axis=0) for row in rows[_LEAST]),
            *(row.max(axis=0) for row in rows[_MOST]),
            *(numpy.take_along_axis(row, tightest, axis=0)[0] for row in rows[_MOST.stop :]),
        )
        closing = mixed.closing + last if self.returns else mixed.closing
        work, own_work = (numpy.minimum(each + last, NEVER) for each in (mixed.work, mixed.own_work))
        return mixed._replace(closing=closing, work=work, own_work=own_work)

    def _on_type(self, device_type: str, *, replicas: int, width: int) -> StageFigures:
        """With no synchronisation yet."""
        least, count, returns = self.least, self.count, int(self.returns)
        works = [least.work_on(layer, device_type, width=width, replicas=replicas) for layer in self.trunk.path]
        forward, returning, backward = (
            _intervals([0 if work is None else figure(work) for work in works]) // replicas
            for figure in (lambda work: work.forward_ns, least.returning, lambda work: work.backward_ns)
        )
        before, after = least.overhead
        forward, returning, backward = forward + before, returning + after * returns, backward + after
        received, passed, sent, busy = self._transfers(device_type, replicas=replicas)
        step = self._step(device_type, replicas=replicas, width=width)
        fitting, is_out = self._fitting(device_type, replicas=replicas, width=width)
        rounds, rest = numpy.divmod(count - 1, fitting)
        drains = (fitting < count) & (not least.problem.options.split_backward)
        work, answered = count * (forward + backward) + step, count * (forward + returning) + step
        is_out = is_out | (_intervals([each is None for each in works]) > 0)
        return StageFigures(
            forward=received + forward,
            back=returns * (returning + sent),
            closing=returns * returning,
            sent=sent + 0 * forward,
            inside=forward + returning,
            passed=passed + 0 * forward,
            work=numpy.where(is_out, NEVER, numpy.maximum(received, busy) + work),
            returned=numpy.maximum(received + sent, busy + (busy > 0) * count * sent) + answered,
            own_work=received + work,
            own_returned=received + answered + sent,
            filled=(fitting - 1) * forward,
            drained=numpy.where(drains, (fitting - 1) * returning, NEVER),
            rounds=rounds + 1,
            turned=received + (rounds + 1) * (forward + returning) + rest * forward + step,
        )

    def _transfers(self, device_type: str, *, replicas: int) -> tuple[Integers, Integers, Integers, Integers]:
        """[begin, end] receiving what an F needs, sending what it made, and sending a gradient, which others wait for.

        The last: what transfers take of the device itself, all that are over before its last action ends.
        """
        port, trunk = max(self.ports[device_type], 1), self.trunk
        forward = numpy.array([size * SECOND // (replicas * port) for size in trunk.forward_bytes])
        backward = numpy.array([size * SECOND // (replicas * port) for size in trunk.backward_bytes]) * self.returns
        occupied = self.count * (forward[:, None] + forward[None, :] + backward[None, :])
        is_busy = self.returns and not self.least.problem.cluster.overlap
        return forward[:, None], forward[None, :], backward[:, None], occupied * is_busy

    def _step(self, device_type: str, *, replicas: int, width: int) -> Integers:
        """[begin, end] the optimizer's step of a device, beyond what every plan has after its barrier."""
        least, sharing = self.least, replicas if self.least.problem.may_shard else 1
        steps = _intervals([least.layers[layer].optimizer_ns(device_type) for layer in self.trunk.path])
        counted = least.optimizer_ns - least.problem.profile.optimizer_ns
        return numpy.maximum(steps // (width * sharing) - counted, 0)

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
