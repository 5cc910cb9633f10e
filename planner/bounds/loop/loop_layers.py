"""What layers take at the least in a loop whose groups have one width and whose ranks have so many replicas.

Units in memory: a rank with N units, m of them recomputed, needs time a N + e m and memory
r sigma N + n (tau (N - m) + lambda m). Here sigma, tau, lambda and e are the least state, stash, remainder and
recomputation time of a unit. The least m that fits in memory decides. What fits for N fits for N - 1.

One stage per rank: the first backward begins after all F and the backward of the later ranks; after the last one, the
earlier ranks' backward follows. Besides n forwards, all other work of the rank lies between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy

from planner.bounds.minimum_costs import Integers, Least, LeastWork
from planner.layout.costs import LayerWork
from planner.plan import FULL_RECOMPUTATION
from profiles.model_profile import Layer, WidthBytes

_BEYOND = 1 << 62
"""Sums beyond it are not compared: then memory is left out."""

NOT_ENOUGH = 1 << 52
"""What recomputation adds where it cannot make room."""

SHARES = 1 << 10
"""Parts in which the share of the forwards in the work is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopKind:
    """What all stages of a plan in a loop have in common."""

    width: int
    """Devices of every group."""
    replicas: int
    """Of the whole pipeline."""


class LoopLayers:
    """The layers of a problem on groups of one width; times are those of a whole microbatch on all replicas."""

    def __init__(self, least: Least, kind: LoopKind, *, works: Sequence[Sequence[LayerWork]]) -> None:
        self.least, self.kind = least, kind
        self._works = works

    def _column(self, figures: Iterator[list[int]]) -> Integers:
        return numpy.array([min(row) for row in figures], dtype=numpy.int64)

    @cached_property
    def time(self) -> LeastWork:
        """On the fastest type that has each layer."""
        returning, works = self.least.returning, self._works
        return LeastWork(
            forward=self._column([work.forward_ns for work in row] for row in works),
            returning=self._column([returning(work) for work in row] for row in works),
            backward=self._column([work.backward_ns for work in row] for row in works),
            rest=self._column([work.backward_ns - returning(work) for work in row] for row in works),
        )

    @cached_property
    def state(self) -> Integers:
        """Per layer: bytes on each device of a group, a part of which replicas may share."""
        sharers = self.kind.replicas if self.least.problem.may_shard else 1
        found = (self.least.residents(number)[self.kind.width] for number in range(len(self.least.layers)))
        return numpy.array([each.shared(sharers) for each in found], dtype=numpy.int64)

    @cached_property
    def stash(self) -> Integers:
        """Per layer: what F leaves for its backward without recomputation."""
        return numpy.array([entry.stash_bytes for entry in self._entries], dtype=numpy.int64)

    @cached_property
    def held(self) -> Integers:
        """Per layer: the least that it leaves by any recomputation that the options allow, or by none."""
        return numpy.array([min(self.least.held_sizes(entry)) for entry in self._entries], dtype=numpy.int64)

    @cached_property
    def extra(self) -> Integers:
        """Per layer: the least that recomputation adds to its backward; `_BEYOND` where it does not recompute."""
        return numpy.array(
            [
                min((work.recomputation_ns(kind) for work in row for kind in kinds), default=_BEYOND)
                for row, kinds in zip(self._works, self._kinds, strict=True)
            ],
            dtype=numpy.int64,
        )

    @cached_property
    def forward_share(self) -> int:
        """The largest share of F in the work of any layer on any type, rounded up, in `SHARES`."""
        works = [work for row in self._works for work in row]
        return max(-(-SHARES * work.forward_ns // max(work.forward_ns + work.backward_ns, 1)) for work in works)

    @cached_property
    def longest_ns(self) -> int:
        """What a rank with all layers has to do of a microbatch at most, if it recomputes by the quickest ways."""
        return int(self.time.total.sum() + self.extra[self.extra < _BEYOND].sum())

    def least_extra(self, flying: Integers) -> Integers:
        """[ranks, layers] what recomputation adds on a rank for so many layers; beyond any time where none fit.

        Layers need no less memory than as many of those that need least. Each that recomputes frees no more than the
        layer that frees most, and takes no less time than as many of those that recompute soonest.
        """
        found = numpy.zeros((len(flying), len(self.state) + 1), dtype=numpy.int64)
        if not self.counts_memory:
            return found
        quickest = numpy.concatenate(([0], numpy.cumsum(numpy.sort(numpy.minimum(self.extra, NOT_ENOUGH)))))
        most = int((self.stash - self.held).max())
        for row, each in zip(found, flying.tolist(), strict=True):
            need = numpy.sort(self.kind.replicas * self.state + each * self.stash)
            missing = numpy.maximum(numpy.cumsum(need) - self.kind.replicas * self.usable, 0)
            freeing = -(-missing // (each * most)) if most else (missing > 0) * (len(need) + 1)
            is_enough = freeing <= numpy.arange(1, len(need) + 1)
            row[1:] = numpy.where(is_enough, quickest[numpy.minimum(freeing, len(need))], NOT_ENOUGH)
        return found

    @cached_property
    def _entries(self) -> list[Layer | WidthBytes]:
        stated = (layer.bytes_at(self.kind.width) for layer in self.least.layers)
        return [entry for entry in stated if entry is not None]

    @cached_property
    def _kinds(self) -> list[list[str]]:
        """Per layer: how it may recompute."""
        options = self.least.problem.options
        full = [FULL_RECOMPUTATION] if options.recompute else []
        stated = [[each.kind for each in entry.recompute_kinds] for entry in self._entries]
        return [[*full, *(kinds if options.recompute_layers else [])] for kinds in stated]

    @cached_property
    def usable(self) -> int:
        """Bytes of the largest device."""
        return max(device.usable_bytes for device in self.least.problem.cluster.devices)

    @cached_property
    def counts_memory(self) -> bool:
        """Whether all sums of bytes are exact in 64 bits."""
        devices, replicas = self.least.num_devices, self.kind.replicas
        return replicas * (int(self.state.sum()) + self.usable) + devices * int(self.stash.sum()) < _BEYOND


def layers_of_kinds(least: Least) -> list[LoopLayers]:
    """Of every width and number of replicas that some plan in a loop may have."""
    kinds = (LoopKind(width=w, replicas=r) for w, r in product(least.widths, least.problem.allowed_replicas))
    found = ((kind, _works(least, kind)) for kind in kinds if num_groups(least, kind.width) >= kind.replicas)
    return [LoopLayers(least, kind, works=works) for kind, works in found if works is not None]


def num_groups(least: Least, width: int) -> int:
    """Groups of so many devices of one type that there are at most at once."""
    return sum(count // width for count in least.types.values())


def _works(least: Least, kind: LoopKind) -> list[list[LayerWork]] | None:
    """Per layer its work on every type; None if no type has one of them, or no bytes are stated."""
    found = []
    for layer in least.layers:
        on_types = (
            least.costs.layer_work(layer.name, device_type, width=kind.width, replicas=kind.replicas)
            for device_type, count in least.types.items()
            if count >= kind.width
        )
        found.append([work for work in on_types if work is not None])
        if not found[-1] or layer.bytes_at(kind.width) is None:
            return None
    return found


class UnitsHeld:
    """How many units of layers ranks hold in a time per microbatch and in their memory.

    Of layers with u units each, one unit takes `unit` of time, and of bytes at least the least of any layer's u-th
    part: of its state, and for each microbatch in flight of its stash, or of what recomputation leaves of that, which
    takes time as well. So of N units, n of them recomputed, time is unit x N + extra x n, and memory r x state x N +
    flying x (stash x (N - n) + held x n); the least n that leaves room decides, and what N units take, N - 1 do.
    """

    def __init__(self, layers: LoopLayers, *, unit: int, counted: Sequence[int], flying: Integers) -> None:
        self.unit, self.flying = unit, flying
        sizes = layers.time.total[list(counted)] // unit
        chosen = [number for number, size in zip(counted, sizes, strict=True) if size]
        sizes = sizes[sizes > 0]
        self.units = int(sizes.sum())

        def least(figures: Integers) -> int:
            return int((figures[chosen] // sizes).min(initial=_BEYOND)) if chosen else 0

        self.state, self.stash, self.held, self.extra = (
            [layers.kind.replicas * least(layers.state), *map(least, (layers.stash, layers.held, layers.extra))]
            if layers.counts_memory
            else [0, 0, 0, 0]
        )

    def count(self, left: Integers) -> Integers:
        """[subsets, ranks] units for [subsets, (time, bytes), ranks] of room."""
        time, room = left[:, 0], left[:, 1]
        low, high = numpy.zeros_like(time), numpy.clip(time // self.unit, 0, self.units)
        if self._fits(high, time=time, room=room).all():
            return high
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = self._fits(middle, time=time, room=room)
            low, high = numpy.where(fits, middle, low), numpy.where(fits, high, middle - 1)
        return low

    def _fits(self, number: Integers, *, time: Integers, room: Integers) -> Integers:
        """Whether so many units fit, with as few of them recomputed as memory allows."""
        saved = self.flying * (self.stash - self.held)
        missing = numpy.maximum((self.state + self.flying * self.stash) * number - room, 0)
        recomputed = numpy.where(saved > 0, -(-missing // numpy.maximum(saved, 1)), (missing > 0) * (number + 1))
        spare = numpy.maximum(time - self.unit * number, 0)
        most = spare // self.extra if self.extra else number
        fits: Integers = recomputed <= numpy.minimum(most, number)
        return fits
