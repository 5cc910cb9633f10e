"""The groups bound: counted by type, the devices do not suffice for stages that are all done in time.

For one stage per device. Each stage of the trunk has some replicas and a width, hence a number of devices of each type.
Its samples cost what was measured for just its share of a microbatch. Bounds that take the best share of every layer on
its own miss that 26 layers on 64 devices cannot all have it. docs/proofs/bounds.md has the proof.
"""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from planner.bounds.bisection import largest_refuted
from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import SECOND, Integers, Least
from planner.bounds.typed_links import port_bandwidths, ring_bandwidths
from planner.clock import HasTime, always
from profiles.model_profile import Layer, WidthBytes

_STEPS = 14
"""Deadlines that are tried at most."""
_MOST_EFFORT = 1_000_000_000
"""Entries of tables for one deadline, at most."""
_QUICK_EFFORT = 150_000_000
"""The same where nobody waits for more."""
_MOST_TYPES = 2
_UNITS = (1, 2, 4, 8, 16)
_MOST = 1 << 57
"""Sums of times and of bytes stay below this, so that 64 bits hold them."""

Counts = tuple[int, ...]
"""Of each type one number."""


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
    return holds and max(_sums(least)) < _MOST and _GroupSizes(least).unit(_MOST_EFFORT) is not None


def _sums(least: Least) -> tuple[int, int]:
    """Nanoseconds and bytes that no sum over layers exceeds."""
    layers = range(len(least.layers))
    works = [
        max(work.forward_ns + work.backward_ns + work.input_grad_ns for *_, work in least.choices(n)) for n in layers
    ]
    sizes = [max(entry.state_bytes + entry.stash_bytes for _, entry in least.entries(n)) for n in layers]
    return 2 * least.problem.num_microbatches * (sum(works) + sum(least.overhead)), sum(sizes)


class _GroupSizes:
    """How replicas of a stage may lie on the types, and what they take of these."""

    def __init__(self, least: Least) -> None:
        self.least = least
        self.types = sorted(least.types, key=lambda name: (least.types[name], name))

    @cached_property
    def placements(self) -> list[tuple[int, Counts]]:
        """Width, and replicas of each type."""
        least = self.least
        pairs = product(least.problem.allowed_replicas, least.widths)
        return [(width, split) for count, width in pairs for split in self._splits(count, width=width)]

    def _splits(self, replicas: int, *, width: int) -> Iterator[Counts]:
        *first, last = (self.least.types[name] // width for name in self.types)
        for counts in product(*(range(min(most, replicas) + 1) for most in first)):
            if 0 <= replicas - sum(counts) <= last:
                yield *counts, replicas - sum(counts)

    def unit(self, effort: int) -> int | None:
        """Devices that are counted as one, rounded down for every stage; none where no unit makes tables so small."""
        return next((unit for unit in _UNITS if self._effort(unit) <= effort), None)

    def _effort(self, unit: int) -> int:
        different = {(width, sum(split), self.taken(split, width=width, unit=unit)) for width, split in self.placements}
        return len(different) * math.prod(self.states(unit)) * (len(self.least.layers) + 1) ** 2

    def states(self, unit: int) -> Counts:
        """Numbers of devices of each type that stages may have taken."""
        return tuple(self.least.types[name] // unit + 1 for name in self.types)

    def taken(self, split: Counts, *, width: int, unit: int) -> Counts:
        """What a stage takes of each type."""
        return tuple(count * width // unit for count in split)


class _StageFigures(NamedTuple):
    """Stages that lie in one way: [begin, end] figures in ns, `NEVER` where there is none or no room."""

    forward: Integers
    """Receiving a microbatch, and F of it."""
    back: Integers
    """The action that makes its gradient, and sending this; 0 where some edge has no gradient."""
    closing: Integers
    """The same action, and the synchronisation after it."""
    work: Integers
    """Receiving the first, all microbatches, and the synchronisation after the last."""
    returned: Integers
    """Receiving the first, and all microbatches up to the last gradient that has been sent."""


class GroupCounts:
    """The programme, for any deadline."""

    def __init__(self, least: Least, *, is_quick: bool = False) -> None:
        self.least, self.trunk, self.groups = least, Trunk(least), _GroupSizes(least)
        self.size, self.returns = self.trunk.num_layers, all(self.trunk.returns)
        cluster, types = least.problem.cluster, self.groups.types
        self.rings, self.ports = ring_bandwidths(cluster, types), port_bandwidths(cluster)
        self.unit = self.groups.unit(_QUICK_EFFORT if is_quick else _MOST_EFFORT) or _UNITS[-1]
        self.states = self.groups.states(self.unit)
        self.stages = list(self._lay_out())

    def _lay_out(self) -> Iterator[tuple[set[Counts], _StageFigures]]:
        """Figures of all stages with as many replicas, as wide and on the same types, and what each takes of these."""
        alike: dict[tuple[int, int, tuple[str, ...]], list[Counts]] = {}
        for width, split in self.groups.placements:
            used = tuple(name for name, count in zip(self.groups.types, split, strict=True) if count)
            alike.setdefault((sum(split), width, used), []).append(split)
        for (replicas, width, used), splits in alike.items():
            alone = [self._on_type(name, replicas=replicas, width=width) for name in used]
            bandwidth = max(int(self.rings[split]) for split in splits)
            taken = {self.groups.taken(split, width=width, unit=self.unit) for split in splits}
            yield taken, self._mixed(alone, self._synchronisation(replicas, bandwidth=bandwidth))

    def _mixed(self, alone: list[_StageFigures], last: Integers) -> _StageFigures:
        """What meets replicas of some type, which may be the quickest, and what is the work of the slowest type."""
        forward, back, closing, work, returned = (
            (numpy.minimum if number < 3 else numpy.maximum).reduce(figures)
            for number, figures in enumerate(zip(*alone, strict=True))
        )
        return _StageFigures(forward, back, closing + last if self.returns else closing, work + last, returned)

    def _on_type(self, device_type: str, *, replicas: int, width: int) -> _StageFigures:
        """With no synchronisation yet."""
        least, count = self.least, self.least.problem.num_microbatches
        works = [least.work_on(layer, device_type, width=width, replicas=replicas) for layer in self.trunk.path]
        forward, returning, backward = (
            _intervals([0 if work is None else figure(work) for work in works]) // replicas
            for figure in (lambda work: work.forward_ns, least.returning, lambda work: work.backward_ns)
        )
        before, after = least.overhead
        received, sent = (
            numpy.array([[size * SECOND // (replicas * max(self.ports[device_type], 1))] for size in sizes])
            for sizes in (self.trunk.forward_bytes, self.trunk.backward_bytes)
        )
        returning = returning + after if self.returns else 0 * returning
        is_out = self._lacks_room(device_type, replicas=replicas, width=width) | (
            _intervals([work is None for work in works]) > 0
        )
        figures = (
            received + forward + before,
            returning + (sent if self.returns else 0),
            returning,
            received + count * (forward + backward + before + after),
            received + count * (forward + before + returning) + (sent if self.returns else 0),
        )
        return _StageFigures(*(numpy.where(is_out, NEVER, figure) for figure in figures))

    def _synchronisation(self, replicas: int, *, bandwidth: int) -> Integers:
        """[begin, end] after the last action; nothing is counted where buckets leave before it."""
        sizes = _intervals([self.least.gradient_bytes[layer] for layer in self.trunk.path])
        if replicas == 1 or self.least.problem.options.synchronisation != "after":
            return 0 * sizes
        different, places = numpy.unique(sizes, return_inverse=True)
        times = [self.least.synchronisation_ns(int(size), replicas, bandwidth=bandwidth) for size in different]
        return numpy.array([min(each, NEVER) for each in times], dtype=numpy.int64)[places].reshape(sizes.shape)

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
        """Whether no plan is done by then, the optimizer left out.

        [boundary, devices taken or idle] are the least heads and turns of the stages before it.
        """
        heads = numpy.full((self.size + 1, *self.states), NEVER, dtype=numpy.int64)
        turns = heads.copy()
        heads[0] = turns[0] = 0
        for begin in range(self.size):
            for taken, stages in self.stages if heads[begin].min() < NEVER else ():
                ends, found = self._behind(heads[begin], turns[begin], begin=begin, stages=stages, deadline=deadline)
                for counts in taken if ends.start < ends.stop else ():
                    self._take(counts, tables=(heads, turns), ends=ends, found=found)
            if heads[self.size].min() < NEVER:
                return False
        return True

    def _behind(
        self, head: Integers, answer: Integers, *, begin: int, stages: _StageFigures, deadline: int
    ) -> tuple[slice, tuple[Integers, Integers]]:
        """Ends of such stages from `begin` on, and heads and turns behind those that are in time."""
        late = numpy.maximum(head.min() + stages.work[begin], answer.min() + stages.returned[begin]) > deadline
        late[: begin + 1] = False
        ends = slice(begin + 1, int(late.argmax()) if late.any() else self.size + 1)
        forward, back, closing, work, returned = (
            figure[begin, ends].reshape(-1, *[1] * head.ndim) for figure in stages
        )
        is_late = (head + work > deadline) | (answer + returned > deadline)
        turned = numpy.maximum(answer + back, head + closing) + forward
        return ends, (numpy.where(is_late, NEVER, head + forward), numpy.where(is_late, NEVER, turned))

    def _take(
        self, taken: Counts, *, tables: tuple[Integers, Integers], ends: slice, found: tuple[Integers, Integers]
    ) -> None:
        """Note them where so many devices more are taken."""
        left = (slice(None), *(slice(max(most - count, 0)) for most, count in zip(self.states, taken, strict=True)))
        places = (ends, *(slice(count, None) for count in taken))
        for table, reached in zip(tables, found, strict=True):
            numpy.minimum(table[places], reached[left], out=table[places])


def _intervals(values: Iterable[int]) -> Integers:
    """[begin, end] sums of what lies between two boundaries; 0 where the end is not behind the begin."""
    sums = numpy.concatenate([[0], numpy.cumsum(numpy.array(list(values), dtype=numpy.int64))])
    intervals: Integers = numpy.maximum(sums[None, :] - sums[:, None], 0)
    return intervals


def raise_bound(
    least: Least, start: int, *, is_quick: bool = False, has_time: HasTime = always, reached: int | None = None
) -> int:
    """The largest makespan found out of reach, plus 1; at least `start`. What is quick counts devices more roughly.

    `reached`: the makespan of a plan; nothing above it is tried.
    """
    counts = GroupCounts(least, is_quick=is_quick)
    return largest_refuted(
        lambda deadline: counts.is_out_of_reach(deadline - least.optimizer_ns),
        start,
        steps=_STEPS,
        has_time=has_time,
        reached=reached,
    )
