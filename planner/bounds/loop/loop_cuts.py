"""Whether a chain can be cut into the stages of a loop in time, by how many layers every stage holds."""

from dataclasses import dataclass
from functools import cached_property

import numpy

from planner.bounds.loop.loop_layers import NOT_ENOUGH
from planner.bounds.loop.loop_order import LoopOrder, order_of
from planner.bounds.minimum_costs import Integers

MOST_FILLINGS = 20_000
"""Fillings of the stages of ranks, over all ranks, of one question."""

Fillings = list[list[tuple[int, ...]]]
"""Per rank the layers of its stages, for every way to fill them."""

NEVER = 1 << 60
"""More than any time."""

_LOOKED_UP = 32
"""Actions that are played while the times of a stage are looked up, about."""


class WindowTables:
    """The least time of so many neighbouring layers, of those that begin within a window of the chain."""

    def __init__(self, times: Integers) -> None:
        """`times`: [kinds, layers], such as those of F and of the backward pass."""
        kinds, size = times.shape
        self.size: int = size
        """Layers of the chain."""
        self.sums = numpy.concatenate((numpy.zeros((kinds, 1), numpy.int64), numpy.cumsum(times, axis=1)), axis=1)
        """[kinds, boundaries] of all layers before."""
        number, begin = numpy.indices((size + 1, size + 1))
        end = number + begin
        rows = [numpy.where(end <= size, self.sums[:, numpy.minimum(end, size)] - self.sums[:, begin], NEVER)]
        for step in (1 << each for each in range((size + 1).bit_length() - 1)):
            later = numpy.full_like(rows[0], NEVER)
            later[:, :, :-step] = rows[-1][:, :, step:]
            rows.append(numpy.minimum(rows[-1], later))
        self._least = numpy.stack(rows, axis=1).reshape(kinds, -1)
        self._level = numpy.array([max(width.bit_length() - 1, 0) for width in range(size + 2)])

    def least(self, number: Integers, *, first: Integers, last: Integers) -> Integers:
        """[kinds, ...] what `number` layers take that begin at any of the boundaries from `first` to `last`."""
        level = self._level[last - first + 1]
        row = (level * (self.size + 1) + number) * (self.size + 1)
        found: Integers = numpy.minimum(self._least[:, row + first], self._least[:, row + last + 1 - (1 << level)])
        return found

    def alone(self, stages: int) -> Integers:
        """[stages, layers] what so many layers take in a stage, by the first kind of times, if no stage is empty."""
        stage, number = numpy.indices((stages, self.size + 1))
        behind = stages - 1 - stage
        first = numpy.where(behind > 0, stage, self.size - number)
        last = numpy.where(stage > 0, self.size - number - behind, 0)
        fits = (number > 0) & (first >= stage) & (first <= last)
        found = numpy.full(stage.shape, NEVER, dtype=numpy.int64)
        found[fits] = self.least(number[fits], first=first[fits], last=last[fits])[0]
        return found


@dataclass(frozen=True, kw_only=True)
class LoopCuts:
    """A question: whether the stages of a loop can hold the layers of a chain and end in time.

    Proof. What a rank holds takes M times its layers and overheads, and room for recomputation, after what is before
    its first layer: `rooms`. Its layers take no more than that, nor than as many of those that take most. With every
    number of layers on every rank, all ranks' layers must be all layers, and take their whole time.

    A case says at least and at most how many layers every stage holds, which says where stages can begin and end. Say
    that one holds n layers or more, begins at a boundary from a to b, and ends at one from c to d. With n the larger of
    n and c - b, it has n neighbouring layers that begin from max(a, c - n) to min(b, d - n): its first ones, or if
    these end before c, those that end there. So it takes no less than those of these that take least; F and the
    backward pass have each the least of their own.
    """

    ranks: int
    chunks: int
    """Stages per rank."""
    count: int
    """Microbatches."""
    tables: WindowTables
    """Of F and of the backward pass, all replicas together."""
    alone: Integers
    """[stages, layers] what layers take for both, in a stage of which nothing else is known."""
    total: Integers
    """[layers] of each the time for both, those that take most first."""
    extra: Integers
    """[ranks, layers] what recomputation adds for so many layers on a rank at least."""
    rooms: Integers
    """[ranks] time per microbatch that the layers of a rank have."""
    deadline: int
    """Time of an iteration, times the replicas."""
    all_return: bool
    """Whether gradients flow back over all edges."""
    overhead: Integers
    """[2] of an F and of a backward pass, all replicas together."""
    hops: tuple[int, int]

    @cached_property
    def order(self) -> LoopOrder:
        """Order of the actions of all ranks."""
        return order_of(ranks=self.ranks, chunks=self.chunks, count=self.count)

    @property
    def num_actions(self) -> int:
        """Of the order, with what it takes to look up the times of all stages."""
        return (2 * self.count + _LOOKED_UP) * self.ranks * self.chunks

    @property
    def units(self) -> int:
        """Layers of the chain."""
        return self.tables.size

    @cached_property
    def _totals(self) -> list[Integers]:
        """Per rank: how many layers it can hold, so that the others can hold all others."""
        heaviest = numpy.concatenate(([0], numpy.cumsum(self.total)))
        loads = []
        for rank, room in enumerate(self.rooms):
            spare = room - self.extra[rank]
            fits = self._least[rank][0] <= spare
            loads.append(numpy.where(fits, numpy.minimum(heaviest, spare), -NEVER))
        ahead, behind = ([_no_ranks(self.units)] for _ in range(2))
        for rank in range(self.ranks):
            ahead.append(_most_of_both(ahead[-1], loads[rank]))
            behind.append(_most_of_both(behind[-1], loads[-1 - rank]))
        found = []
        for rank, load in enumerate(loads):
            others = _most_of_both(ahead[rank], behind[self.ranks - 1 - rank])[::-1]
            found.append(numpy.flatnonzero((load > -NEVER) & (load + others >= heaviest[-1])))
        return found

    @cached_property
    def _least(self) -> list[Integers]:
        """Per rank: [chunks + 1, layers] what so many layers take in its stages from a chunk on."""
        return list(_least_from_chunk(self.alone.reshape(self.chunks, self.ranks, -1)))

    @cached_property
    def _fillings(self) -> Fillings | None:
        found = Fillings()
        if self.chunks == 1 and self.all_return:
            return self._in_a_row()
        if not all(map(len, self._totals)):
            return [[] for _ in range(self.ranks)]
        for rank, totals in enumerate(self._totals):
            rooms = self.rooms[rank] - self.extra[rank, totals]
            rows = _fillings_of(self.alone[rank :: self.ranks], self._least[rank], totals=totals, rooms=rooms)
            if rows is None or sum(map(len, found)) + len(rows) > MOST_FILLINGS:
                return None
            found.append(rows)
        return found

    def fillings(self) -> Fillings | None:
        """Per rank: the layers of its stages, for every way to fill them in time; None where these are too many."""
        return self._fillings

    def _in_a_row(self) -> Fillings:
        """The same for one stage per rank, by the boundaries that can be reached from both ends of the chain."""
        size, last = self.units, self.ranks - 1
        allowed = [self._in_time(rank) for rank in range(self.ranks)]
        ahead, behind = [numpy.arange(size + 1) == 0], [numpy.arange(size + 1) == size]
        for rank in range(last):
            ahead.append((allowed[rank] & ahead[-1][:, None]).any(axis=0))
            behind.append((allowed[last - rank] & behind[-1]).any(axis=1))
        pairs = (numpy.nonzero(a[:, None] & b & c) for a, b, c in zip(ahead, allowed, behind[::-1], strict=True))
        return [[(number,) for number in numpy.unique(end - begin).tolist()] for begin, end in pairs]

    def _in_time(self, rank: int) -> Integers:
        """[boundaries, boundaries] whether the stage of a rank may be from one to the other, the only one there.

        Three paths end in time: its first F waits for those before, and what it runs is followed by their B; its first
        B waits for all F and the B behind, and what is left to run is followed by the B before; the same turned round.
        """
        count, last, (there, back) = self.count, self.ranks - 1, self.hops
        number = numpy.subtract.outer(*[numpy.arange(self.units + 1)] * 2).T
        extra = self.extra[rank, numpy.maximum(number, 0)]
        own, before, behind = list[Integers](), 0, 0
        for sums, overhead in zip(self.tables.sums, self.overhead.tolist(), strict=True):
            own.append(sums[None, :] - sums[:, None] + overhead)
            before = before + sums[:, None] + rank * overhead
            behind = behind + sums[-1] - sums[None, :] + (last - rank) * overhead
        forward, backward = own[0], own[1] + numpy.where(extra < NOT_ENOUGH, extra, 0)
        later = count - min(self.ranks - rank, count)
        through = before + behind + forward + backward + last * (there + back)
        ends = [
            before + count * (forward + backward) + rank * (there + back),
            through + later * forward + (count - 1) * backward,
            through + (count - 1) * forward + later * backward,
        ]
        fits: Integers = (number > 0) & (extra < NOT_ENOUGH) & (numpy.max(ends, axis=0) <= self.deadline)
        return fits

    def times(self, lower: Integers, upper: Integers) -> Integers:
        """[2, stages, cases] what stages take at least that hold from `lower` to `upper` layers, [cases, stages]."""
        first, last = self._windows(lower, upper)
        last = numpy.maximum(last, first)
        begin, latest, end = first[:, :-1], last[:, :-1], first[:, 1:]
        number = numpy.maximum(lower, end - latest)
        latest = numpy.maximum(numpy.minimum(latest, last[:, 1:] - number), begin)
        begin = numpy.minimum(numpy.maximum(begin, end - number), latest)
        found = numpy.minimum(self.tables.least(number, first=begin, last=latest), self.tables.sums[:, -1:, None])
        return found.transpose(0, 2, 1) + self.overhead[:, None, None]

    def _windows(self, lower: Integers, upper: Integers) -> tuple[Integers, Integers]:
        """[cases, boundaries] the first and the last place of each."""
        first = numpy.maximum(*_boundaries(lower, upper, size=self.units))
        return first, numpy.minimum(*_boundaries(upper, lower, size=self.units))

    def times_by_number(self, lower: Integers, upper: Integers) -> Integers:
        """[2, stages, layers] what as many take at least in a stage, where stages hold from `lower` to `upper`."""
        (first,), (last,) = self._windows(lower[None], upper[None])
        number = numpy.arange(upper.max() + 1) + numpy.zeros_like(lower)[:, None]
        first = numpy.maximum(first[:-1, None], first[1:, None] - number)
        last = numpy.minimum(last[:-1, None], last[1:, None] - number)
        fits = (number > 0) & (first <= last)
        found = numpy.full((2, *fits.shape), NEVER, dtype=numpy.int64)
        found[:, fits] = self.tables.least(number[fits], first=first[fits], last=last[fits])
        return found + self.overhead[:, None, None]


def _boundaries(near: Integers, far: Integers, *, size: int) -> tuple[Integers, Integers]:
    """[cases, boundaries] where they are by the stages before, with `near` layers, and by those behind, with `far`."""
    before = numpy.zeros((len(near), near.shape[1] + 1), dtype=numpy.int64)
    behind = numpy.zeros_like(before)
    numpy.cumsum(near, axis=1, out=before[:, 1:])
    numpy.cumsum(far[:, ::-1], axis=1, out=behind[:, -2::-1])
    return before, size - behind


def _no_ranks(size: int) -> Integers:
    found = numpy.full(size + 1, -NEVER, dtype=numpy.int64)
    found[0] = 0
    return found


def _most_of_both(some: Integers, others: Integers) -> Integers:
    """[layers] the most time that so many layers have on some ranks and others together; less than 0 if none."""
    found = numpy.full_like(some, -NEVER)
    for number in numpy.flatnonzero(others > -NEVER):
        size = len(found) - number
        numpy.maximum(found[number:], some[:size] + others[number], out=found[number:])
    return numpy.where(found < 0, -NEVER, found)


def _least_from_chunk(times: Integers) -> Integers:
    """[ranks, chunks + 1, layers] what so many take in a rank's stages from a chunk on; [chunks, ranks, layers]."""
    chunks, ranks, size = times.shape
    found = numpy.full((chunks + 1, ranks, size), NEVER, dtype=numpy.int64)
    found[-1, :, 0] = 0
    for chunk in range(chunks - 1, -1, -1):
        for number in numpy.flatnonzero((times[chunk] < NEVER).any(axis=0)):
            later = found[chunk + 1, :, : size - number] + times[chunk, :, number, None]
            numpy.minimum(found[chunk, :, number:], later, out=found[chunk, :, number:])
    return found.transpose(1, 0, 2)


def _fillings_of(
    times: Integers, least: Integers, *, totals: Integers, rooms: Integers
) -> list[tuple[int, ...]] | None:
    """Numbers of layers of a rank's stages, so many in all, that fit into its room; None where these are too many.

    `totals`, each with one of `rooms`, come one after the other.
    """
    which, left, room = numpy.arange(len(totals)), totals, rooms
    rows = numpy.zeros((len(totals), 0), dtype=numpy.int64)
    for own, behind in zip(times, least[1:], strict=True):
        number = numpy.flatnonzero(own <= room.max(initial=0))
        after = left[:, None] - number
        fits = (after >= 0) & (own[number] + behind[numpy.maximum(after, 0)] <= room[:, None])
        at, place = numpy.nonzero(fits)
        which, left, room = which[at], after[fits], room[at] - own[number[place]]
        rows = numpy.column_stack((rows[at], number[place]))
        if len(which) > MOST_FILLINGS:
            return None
    return [*map(tuple, rows.tolist())]
