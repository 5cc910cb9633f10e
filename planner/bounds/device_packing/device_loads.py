"""The loads that devices can have until a deadline: stages, alone or two on a device.

A stage is an interval of keys on r replicas. Heads say when a replica of it can start: `head` if its device holds
nothing of the stage before, `soonest` whatever its device holds.

docs/proofs/refutations.md has the rules; these prove those of memory for stages k and j on one device:

* Nested: with one replica of k the device ran the whole microbatch's F in k before any F of it in j. Its I in k follows
  that of all its samples in j. With one replica of j its samples in k are all in j.
* In turn: F number n + m starts after m of I have ended. One of these belongs to an F that was not before number m. So
  it starts a stay after F number m at least.
* Area: each microbatch holds x from its F to its I. All these intervals lie between h and T - l, and no more than X
  bytes fit at a time.
* First I: before it a device ran F only, and their microbatches are all in memory. So all work but A follows.
* Last I: after it, only remainders run whose bytes are in memory, P at most, and a tail follows.
"""

import itertools
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property

import numpy
from numpy.typing import NDArray

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.packed_forms import useful_levels
from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers, Least, LeastWork

Mask = NDArray[numpy.bool_]

Numbers = NDArray[numpy.int32]
"""Small ones; there may be millions."""

PAIRS_AT_ONCE = 1 << 14
"""About so many pairs of stages are looked at together."""

_PARTS_OF_LEVELS, _PARTS_OF_PLAIN = 3, 64
"""There are levels where their pairs of stages are no more than such a part of the effort; and afterwards none, where
the pairs without levels are no more than the second part.
"""

_MOST_COUNTED = 1 << 24
"""Pairs of stages that are counted one by one, at most."""

FULL = 1 << 20
"""Parts of the largest device's memory, and of the time until the deadline."""

_MOST_BITS = 40
"""Of numbers that are counted in such parts, so that 64 bits hold the product."""

_LATE = NEVER // 2
"""Times from here on are never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoads:
    """What devices may hold; one entry per load."""

    first: Numbers
    """The stage further up the trunk."""
    second: Numbers
    """The other stage, or -1."""
    first_latest: Integers
    """The largest `head` of the first stage with which the device is done in time."""
    second_latest: Integers
    """The same of the second stage."""
    follows: Mask
    """Whether the second stage begins where the first ends."""
    kind: Numbers
    """The kind of device, as a number."""
    room: Numbers
    """Bytes x time that microbatches between F and I can have there at most, in parts of `FULL` of the largest device's
    memory until the deadline."""

    def keep(self, which: Mask) -> "DeviceLoads":
        """The entries that a mask or indices choose."""
        return DeviceLoads(**{each.name: getattr(self, each.name)[which] for each in fields(self)})


def parts_up(numbers: Integers, whole: int) -> Integers:
    """Numbers from 0 to `whole` in parts of `FULL` of it, rounded up."""
    shift = max(0, whole.bit_length() - _MOST_BITS)
    below = (-numbers) >> shift
    return -(below * FULL // max(whole >> shift, 1))


def parts_down(numbers: Integers, whole: int, *, parts: int = FULL) -> Integers:
    """The same rounded down, in `parts` of it, at most `FULL`."""
    shift = max(0, whole.bit_length() - _MOST_BITS)
    return (numbers >> shift) * parts // max((whole >> shift) + (shift > 0), 1)


def join_loads(parts: Sequence[DeviceLoads]) -> DeviceLoads:
    """One table from several, in their order."""
    names = [each.name for each in fields(DeviceLoads)]
    return DeviceLoads(**{name: numpy.concatenate([getattr(loads, name) for loads in parts]) for name in names})


class OpenStages:
    """Every stage that may be part of a plan done by the deadline; narrowed down step by step."""

    def __init__(self, boundaries: Boundaries, deadline: int) -> None:
        self.boundaries, self.deadline = boundaries, deadline
        self.start, self.end, self.replicas, self.form = _intervals(boundaries, deadline)
        r, b = self.replicas, boundaries
        self.used: Integers = r * b.forms.width[self.form]
        """Devices."""
        self.rounded = (r > 1).astype(numpy.int64)
        """1 where what a replica takes is rounded down."""
        stash, kept, gradient = (sums[self.end] - sums[self.start] for sums in (b.stash, b.kept, b.gradient))
        state, held = self._sum(b.forms.state), self._sum(b.forms.held)
        left, most, again = b.forms.leave(self.start, self.end, form=self.form)
        self.fits_level: Mask = (held <= most) | (b.forms.num_levels == 1)
        self.left = numpy.maximum(held, left) // r
        """Bytes that F of a microbatch leaves, on average."""
        self.is_mixed = b.forms.num_levels > 1 and b.least.problem.options.recompute_microbatches
        """Whether single microbatches may leave less than on average, and recompute more."""
        if not self.is_mixed:
            held = numpy.maximum(held, left)
        self.again, self.repeated = (again * 0, b.count * again) if self.is_mixed else (again, again * 0)
        """What each microbatch recomputes, and what all of them do where they differ."""
        self.memory = boundaries.memory
        self._take(b.times)
        self.state, self.held = state, held // r
        self.stash, self.kept = numpy.maximum(stash, held) // r, numpy.minimum(kept, stash) // r
        self.entering, self.leaving = boundaries.buffers[0][self.start] // r, boundaries.buffers[1][self.end] // r
        self.static = state + self.entering + self.leaving
        self.least_static = self.static
        if boundaries.chunks > 1:
            self.least_static = self.static - numpy.maximum(self.entering, self.leaving)
        sizes = zip(gradient.tolist(), r.tolist(), strict=True)
        self.synchronisation = numpy.array(
            [boundaries.least.synchronisation_ns(size, number) for size, number in sizes], dtype=numpy.int64
        )
        self.head, self.soonest, self.turnaround, self.turnaround_anywhere = (
            numpy.zeros(len(r), dtype=numpy.int64) for _ in range(4)
        )
        self.tail = self.rest + self.synchronisation
        self.tail_anywhere = self.tail.copy()
        self.is_open: Mask = self._is_balanced()

    def _sum(self, table: Integers) -> Integers:
        """Of the keys of every stage, in its form."""
        return table[self.form, self.end] - table[self.form, self.start]

    def _take(self, times: LeastWork) -> None:
        """The times of a replica, from those of the keys."""
        forward, returning, backward, rest = map(
            self._sum, (times.forward, times.returning, times.backward, times.rest)
        )
        returning, backward = returning + self.again, backward + self.again
        count, r = self.boundaries.count, self.replicas
        self.forward, self.returning = forward // r, returning // r
        self.all_forward, self.all_returning = count * forward // r, (count * returning + self.repeated) // r
        self.all_backward = (count * backward + self.repeated) // r
        self.work = (count * (forward + backward) + self.repeated) // r
        self.rest = rest // r

    def on(self, number: int) -> "OpenStages":
        """The same stages on a kind of device: only its own times and memory differ."""
        kind, stages = self.boundaries.kinds[number], copy(self)
        stages.memory = kind.memory
        stages._take(kind.times)
        stages.tail = numpy.maximum(self.tail, stages.rest + self.synchronisation)
        return stages

    def copy(self) -> "OpenStages":
        """Stages that can be narrowed down further on their own."""
        stages = copy(self)
        for name in ("is_open", "head", "soonest", "turnaround", "turnaround_anywhere", "tail", "tail_anywhere"):
            setattr(stages, name, getattr(self, name).copy())
        return stages

    def _is_balanced(self) -> Mask:
        """Before the last I of a stage lie all F and the I from it on; then it synchronises."""
        b = self.boundaries
        before = b.count * (b.forward[-1] + b.returning[-1] - b.returning[self.start]) // b.num_devices
        balanced: Mask = before + self.synchronisation <= self.deadline
        fits: Mask = self.least_static + self.stash <= b.memory
        return balanced & fits & self.fits_level

    @cached_property
    def _by_start(self) -> list[Integers]:
        return [numpy.flatnonzero(self.start == boundary) for boundary in range(self.boundaries.size)]

    def _open_from(self, boundary: int) -> Integers:
        chosen = self._by_start[boundary]
        return chosen[self.is_open[chosen]]

    def tighten(self) -> None:
        """Raise the heads to what the open stages allow, and close the stages that are late."""
        self._raise_heads()
        self._raise_tails()
        self._set_turnarounds()
        b = self.boundaries
        ahead = b.forward[-1] + b.returning[-1] - b.forward[self.start] - b.returning[self.start]
        turned = numpy.maximum(self.all_forward + self.all_returning, b.count * ahead // b.num_devices)
        last = numpy.maximum(self.work + self.synchronisation, turned + self.tail_anywhere)
        turnaround = numpy.minimum(self.turnaround, self.turnaround_anywhere)
        self.is_open &= (self.soonest < _LATE) & (turnaround < _LATE)
        self.is_open &= self.soonest + last <= self.deadline
        self.is_open &= self.soonest + self.forward + turnaround + self.all_backward <= self.deadline

    def _raise_heads(self) -> None:
        """Earliest ends of F per boundary and replicas, by whether the last stage came over a hop or shares a device.

        Only two stages fit on a device: what goes along with a sample never stays on its device twice in a row.
        """
        b = self.boundaries
        shape = (b.size + 1, b.replicas + 1)
        hopped, stayed = numpy.full(shape, NEVER), numpy.full(shape, NEVER)
        for boundary in range(b.size):
            chosen = self._open_from(boundary)
            r = self.replicas[chosen]
            head, stay = numpy.zeros(len(r), dtype=numpy.int64), numpy.full(len(r), NEVER)
            if boundary:
                ended = numpy.minimum(hopped[boundary], stayed[boundary])[1:, None]
                head = (ended + b.forward_hops[boundary, 1:][:, r]).min(axis=0)
                stay = numpy.full(len(r), hopped[boundary].min() if b.chunks > 1 else NEVER)
            self.head[chosen] = numpy.maximum(self.head[chosen], head)
            self.soonest[chosen] = numpy.maximum(self.soonest[chosen], numpy.minimum(head, stay))
            for table, start in ((hopped, self.head[chosen]), (stayed, numpy.maximum(stay, self.soonest[chosen]))):
                ends = numpy.where(start < _LATE, start + self.forward[chosen], NEVER)
                numpy.minimum.at(table, (self.end[chosen], r), ends)

    def _raise_tails(self) -> None:
        """What follows the last I of a stage: its rest and synchronisation, or the same gradient's path up the trunk.

        As with heads, it never stays on its device twice in a row.
        """
        b = self.boundaries
        shape = (b.size + 1, b.replicas + 1)
        hopped, stayed = numpy.full(shape, NEVER), numpy.full(shape, NEVER)
        for boundary in range(b.size):
            chosen = self._open_from(boundary)
            r, end = self.replicas[chosen], self.end[chosen]
            over, stay = numpy.zeros(len(r), dtype=numpy.int64), numpy.full(len(r), NEVER)
            if boundary:
                left = numpy.minimum(hopped[boundary], stayed[boundary])[1:, None]
                over = (left + b.gradient_hops[boundary, 1:][:, r]).min(axis=0)
                stay = numpy.full(len(r), hopped[boundary].min() if b.chunks > 1 else NEVER)
            self.tail[chosen] = numpy.maximum(self.tail[chosen], over)
            anywhere = numpy.maximum(self.tail_anywhere[chosen], numpy.minimum(over, stay))
            self.tail_anywhere[chosen] = anywhere
            for table, tail in ((hopped, self.tail[chosen]), (stayed, numpy.maximum(stay, anywhere))):
                numpy.minimum.at(table, (end, r), numpy.where(tail < _LATE, tail + self.returning[chosen], NEVER))

    def _set_turnarounds(self) -> None:
        """Least time from the end of an F to its gradient, if the next stage is on other devices, or anywhere."""
        b = self.boundaries
        shape = (b.size + 1, b.replicas + 1)
        over, along = numpy.full(shape, NEVER), numpy.full(shape, NEVER)
        over[b.size] = along[b.size] = 0
        for boundary in range(b.size - 1, 0, -1):
            chosen = self._open_from(boundary)
            if not len(chosen):
                continue
            end, r = self.end[chosen], self.replicas[chosen]
            inside = self.forward[chosen] + self.returning[chosen]
            beyond = numpy.maximum(numpy.minimum(over, along)[end, r], self.turnaround_anywhere[chosen]) + inside
            over[boundary, 1:] = (beyond + b.returning_hops[boundary, 1:][:, r]).min(axis=1)
            if b.chunks > 1:
                along[boundary, 1:] = (numpy.maximum(over[end, r], self.turnaround[chosen]) + inside).min()
        anywhere = numpy.minimum(over, along)[self.end, self.replicas]
        self.turnaround = numpy.maximum(self.turnaround, numpy.minimum(over[self.end, self.replicas], NEVER))
        self.turnaround_anywhere = numpy.maximum(self.turnaround_anywhere, numpy.minimum(anywhere, NEVER))

    def count_pairs(self) -> int:
        """How many `pairs` there are: a little more where they are too many to look at each."""
        _, places = self._in_order()
        most = int((len(places) - places).sum()) if self.boundaries.chunks > 1 else 0
        return sum(len(k) for k, _ in self.pairs()) if 0 < most <= _MOST_COUNTED else most

    def count_loads(self) -> int:
        """Loads that are looked at where all are listed: open stages, alone and in pairs, on every kind of device."""
        return (int(self.is_open.sum()) + self.count_pairs()) * len(self.boundaries.kinds)

    def _in_order(self) -> tuple[Integers, Integers]:
        """Open stages by their start, and the place among them of the first that begins where each ends, or later."""
        chosen = numpy.flatnonzero(self.is_open)
        chosen = chosen[numpy.argsort(self.start[chosen], kind="stable")]
        return chosen, numpy.searchsorted(self.start[chosen], self.end[chosen])

    def pairs(self) -> Iterator[tuple[Integers, Integers]]:
        """Pairs of open stages of which the second begins where the first ends or later, some thousands at once.

        Only those are among them whose work ends by the deadline on one device that has room for what stays of both.
        """
        chosen, places = self._in_order()
        counts = len(chosen) - places
        groups = numpy.cumsum(counts) // PAIRS_AT_ONCE
        for group in range(int(groups[-1]) + 1 if len(chosen) else 0):
            which = numpy.flatnonzero((groups == group) & (counts > 0))
            if len(which):
                k = numpy.repeat(chosen[which], counts[which])
                j = numpy.concatenate([chosen[places[number] :] for number in which])
                fits = self.work[k] + self.work[j] <= self.deadline
                fits &= self.least_static[k] + self.least_static[j] <= self.memory
                yield k[fits], j[fits]


def _intervals(boundaries: Boundaries, deadline: int) -> tuple[Integers, ...]:
    """Start, end, replicas and form of all stages that are no longer than the deadline."""
    b, found = boundaries, []
    for replicas, form in itertools.product(b.allowed, range(len(b.forms.width))):
        done, lacking = b.times.forward[form] + b.times.backward[form], b.forms.lacking[form]
        for start in range(b.size if replicas * b.forms.width[form] <= b.most else 0):
            ends = numpy.arange(start + 1, b.size + 1)
            ends = ends[b.count * (done[ends] - done[start]) // replicas <= deadline]
            ends = ends[lacking[ends] == lacking[start]]
            own, number = numpy.full(len(ends), start), len(ends)
            found.append((own, ends, numpy.full(number, replicas), numpy.full(number, form)))
    return tuple(numpy.concatenate(parts).astype(numpy.int64) for parts in zip(*found, strict=True))


def fitting_boundaries(least: Least, start: int, *, effort: int) -> list[Boundaries]:
    """With as many levels of what stages leave as the effort can list; then, where a little of it lists the pairs of
    stages without levels, with none: cases do not tell levels apart, so that some close sooner.
    """

    def pairs(boundaries: Boundaries) -> int:
        return OpenStages(boundaries, start).count_pairs() * len(boundaries.kinds)

    found, plain = [], Boundaries(least)
    for levels in range(useful_levels(least), 1, -1):
        found = [Boundaries(least, levels=levels)]
        if _PARTS_OF_LEVELS * pairs(found[0]) <= effort:
            break
        found = []
    return [*found, plain] if not found or _PARTS_OF_PLAIN * pairs(plain) <= effort else found
