"""The groups bound: counted by type, the devices do not suffice for stages that are all done in time.

For one stage per device. Each stage of the trunk has some replicas and a width, hence a number of devices of each type.
Its samples cost what was measured for just its share of a microbatch. Bounds that take the best share of every layer on
its own miss that 26 layers on 64 devices cannot all have it. docs/proofs/bounds.md has the proof.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from planner.bounds.bisection import largest_refuted
from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import Integers, Least
from planner.clock import HasTime, always
from profiles.model_profile import Layer, WidthBytes

_STEPS = 14
"""Deadlines that are tried at most."""
_ROUNDS = 3
"""Times that heads are raised by the devices that later stages need."""
_MOST_EFFORT = 20_000_000
"""Entries of tables for one deadline, at most."""
_MOST_TYPES = 2
_MOST = 1 << 57
"""Sums of times and of bytes stay below this, so that 64 bits hold them."""


def applies_to(least: Least) -> bool:
    """Whether the bound holds here, and is derived in seconds."""
    options = least.problem.options
    holds = (
        options.objective == "makespan"
        and not options.cuts_unevenly
        and not options.has_few_bounds
        and options.max_stages_per_device == 1
        and len(least.types) <= _MOST_TYPES
        and (least.problem.max_replicas > 1 or least.widths != (1,))
    )
    return holds and _effort(least) <= _MOST_EFFORT and max(_sums(least)) < _MOST


def _shapes(least: Least) -> list[tuple[int, int]]:
    """Replicas and width of a stage."""
    pairs = ((count, width) for count in least.problem.allowed_replicas for width in least.widths)
    return [(count, width) for count, width in pairs if count * width <= least.num_devices]


def _effort(least: Least) -> int:
    shapes, length = _shapes(least), len(least.layers)
    splits = sum(count for count, _ in shapes) if len(least.types) > 1 else 0
    return length * (len(shapes) * (length + 1) * least.num_devices + splits * (min(least.types.values()) + 1))


def _sums(least: Least) -> tuple[int, int]:
    """Nanoseconds and bytes that no sum over layers exceeds."""
    layers = range(len(least.layers))
    works = [
        max(work.forward_ns + work.backward_ns + work.input_grad_ns for *_, work in least.choices(n)) for n in layers
    ]
    sizes = [max(entry.state_bytes + entry.stash_bytes for _, entry in least.entries(n)) for n in layers]
    return 2 * least.problem.num_microbatches * (sum(works) + sum(least.overhead)), sum(sizes)


class _Shape(NamedTuple):
    """Stages of some replicas and width on one type: [begin, end] figures, `NEVER` where there is none or no room."""

    replicas: int
    width: int
    forward: Integers
    """F of a replica for one microbatch."""
    turning: Integers
    """F and the action that sends the gradient on; F alone where some edge has no gradient."""
    work: Integers
    """All microbatches, and the synchronisation after the last."""
    returned: Integers
    """All microbatches up to the last gradient that is sent on."""

    @property
    def devices(self) -> int:
        """Devices of a stage."""
        return self.replicas * self.width


class GroupCounts:
    """The programme, for any deadline."""

    def __init__(self, least: Least) -> None:
        self.least, self.trunk = least, Trunk(least)
        self.types = sorted(least.types, key=lambda name: (least.types[name], name))
        self.size = self.trunk.num_layers
        self.shapes = [
            [self._shape(name, replicas=count, width=width) for count, width in _shapes(least)] for name in self.types
        ]

    def _shape(self, device_type: str, *, replicas: int, width: int) -> _Shape:
        least, count = self.least, self.least.problem.num_microbatches
        works = [least.work_on(layer, device_type, width=width, replicas=replicas) for layer in self.trunk.path]
        forward, returning, backward = (
            _intervals([0 if work is None else figure(work) for work in works]) // replicas
            for figure in (lambda work: work.forward_ns, least.returning, lambda work: work.backward_ns)
        )
        before, after = least.overhead
        is_out = self._lacks_room(device_type, replicas=replicas, width=width) | (
            _intervals([work is None for work in works]) > 0
        )
        shown = [
            numpy.where(is_out, NEVER, figure)
            for figure in (
                forward + before,
                forward + before + (returning + after if all(self.trunk.returns) else 0),
                count * (forward + backward + before + after) + self._synchronisation(replicas),
                count * (forward + returning + before + after),
            )
        ]
        return _Shape(replicas, width, *shown)

    def _synchronisation(self, replicas: int) -> Integers:
        """[begin, end] after the last action; nothing is counted where buckets leave before it."""
        if replicas == 1 or self.least.problem.options.synchronisation != "after":
            return numpy.zeros((self.size + 1, self.size + 1), dtype=numpy.int64)
        sizes = _intervals([self.least.gradient_bytes[layer] for layer in self.trunk.path])
        times = {size: self.least.synchronisation_ns(size, replicas) for size in set(sizes.ravel().tolist())}
        return numpy.vectorize(times.__getitem__, otypes=[numpy.int64])(sizes)  # type: ignore[no-any-return]

    def _lacks_room(self, device_type: str, *, replicas: int, width: int) -> NDArray[numpy.bool_]:
        """[begin, end] whether state and one microbatch exceed every device of the type."""
        entries = [dict(self.least.entries(layer)).get(width) for layer in self.trunk.path]
        most = max(d.usable_bytes for d in self.least.problem.cluster.devices if d.type == device_type)
        states = _intervals([self.least.states(layer).get(width, 0) for layer in self.trunk.path])
        stashes = _intervals([0 if entry is None else self._stash(entry) for entry in entries])
        return states + stashes // replicas > most

    def _stash(self, entry: Layer | WidthBytes) -> int:
        """The least that is there of it while the backward of its stage runs."""
        return min(self.least.held_sizes(entry)) if self.least.problem.options.recompute_in_turn else entry.stash_bytes

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan is done by then, the optimizer left out."""
        later = numpy.zeros(self.size + 1, dtype=numpy.int64)
        for _ in range(_ROUNDS):
            heads, turns = self._heads(deadline, later=later)
            needs = self._needs(
                [
                    [self._furthest(shape, heads=heads, turns=turns, deadline=deadline) for shape in row]
                    for row in self.shapes
                ]
            )
            if needs[0].min() > self.least.types[self.types[-1]]:
                return True
            counted = (numpy.arange(needs.shape[1]) + needs).min(axis=1)
            if (counted == later).all():
                break
            later = counted
        return False

    def _heads(self, deadline: int, *, later: Integers) -> tuple[Integers, Integers]:
        """[boundary] least sum of F, and of F and I, of one microbatch before it, on the devices that `later` leaves.

        Stages that are not done by the deadline on their own are none.
        """
        devices = self.least.num_devices
        sums = numpy.full((2, self.size + 1, devices + 1), NEVER, dtype=numpy.int64)
        sums[:, 0] = 0
        steps = list(self._steps(deadline))
        for begin in range(self.size):
            for used, figures in steps:
                reached = sums[:, begin, None, : devices + 1 - used] + figures[:, begin, begin + 1 :, None]
                numpy.minimum(sums[:, begin + 1 :, used:], reached, out=sums[:, begin + 1 :, used:])
        left = numpy.maximum(devices - later, 0)
        heads, turns = numpy.minimum(sums, NEVER)[:, numpy.arange(self.size + 1), left]
        return heads, turns

    def _steps(self, deadline: int) -> Iterator[tuple[int, Integers]]:
        """Devices of a shape, and [2, begin, end] the least F, and F and I, over the types that are in time."""
        for shapes in zip(*self.shapes, strict=True):
            figures = [numpy.where(shape.work <= deadline, [shape.forward, shape.turning], NEVER) for shape in shapes]
            yield shapes[0].devices, numpy.minimum.reduce(figures)

    def _furthest(self, shape: _Shape, *, heads: Integers, turns: Integers, deadline: int) -> Integers:
        """[begin] the last end at which such a stage is in time; `begin` where there is none."""
        is_late = (heads[:, None] + shape.work > deadline) | (turns[:, None] + shape.returned > deadline)
        ends = numpy.arange(self.size + 1)
        late = numpy.where(is_late & (ends[None, :] > ends[:, None]), ends[None, :], self.size + 1)
        furthest: Integers = late.min(axis=1) - 1
        return furthest

    def _needs(self, furthest: list[list[Integers]]) -> Integers:
        """[boundary, devices of the first type] devices of the last type that the stages from there need, at least.

        With one type there is no first one.
        """
        most = self.least.types[self.types[0]] if len(self.types) > 1 else 0
        found = numpy.full((self.size + 1, most + 1), NEVER, dtype=numpy.int64)
        found[self.size] = 0
        for begin in range(self.size - 1, -1, -1):
            within = numpy.minimum.accumulate(found[begin + 1 :])
            for first, last, end in set(self._uses([[int(ends[begin]) for ends in row] for row in furthest])):
                if end > begin and first <= most:
                    reached = within[end - begin - 1, : most + 1 - first] + last
                    numpy.minimum(found[begin, first:], reached, out=found[begin, first:])
        return found

    def _uses(self, ends: list[list[int]]) -> Iterator[tuple[int, int, int]]:
        """Devices of the first and of the last type that a stage may take, and its end."""
        for number, shape in enumerate(self.shapes[0]):
            if len(self.types) == 1:
                yield 0, shape.devices, ends[0][number]
                continue
            yield shape.devices, 0, ends[0][number]
            yield 0, shape.devices, ends[1][number]
            both = min(ends[0][number], ends[1][number])
            for some in range(1, shape.replicas):
                yield some * shape.width, (shape.replicas - some) * shape.width, both


def _intervals(values: list[int]) -> Integers:
    """[begin, end] sums of what lies between two boundaries; 0 where the end is not behind the begin."""
    sums = numpy.concatenate([[0], numpy.cumsum(numpy.array(values, dtype=numpy.int64))])
    intervals: Integers = numpy.maximum(sums[None, :] - sums[:, None], 0)
    return intervals


def raise_bound(least: Least, start: int, *, has_time: HasTime = always) -> int:
    """The largest makespan found out of reach, plus 1; at least `start`."""
    counts = GroupCounts(least)
    return largest_refuted(
        lambda deadline: counts.is_out_of_reach(deadline - least.optimizer_ns), start, steps=_STEPS, has_time=has_time
    )
