"""Rows of counts over cells of time: what holds of every plan of given stages that ends within so many.

Proof. Keep the order of every device, and begin each action as early as it can with the shorter durations: all begin at
whole cells, none later than before. Column (n, c, t) is how many actions of kind c of stage replica n begin by t. Each
row holds whatever the order of microbatches. Rows are made when they are asked for: there are some for every cell.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

KEPT, RECOMPUTED = 0, 1
_F, _I, _W = 0, 2, 4
"""Kinds of counts of a stage replica: F and I of what is kept and of what recomputes, and W."""
KINDS = 5

Entry = tuple[int, int, int, int]
"""Stage replica, kind, cells after that of a row, and factor."""


@dataclass(frozen=True, slots=True)
class CellRow:
    """The sum of coefficients times counts is at most `most`."""

    terms: dict[int, int]
    """Column to coefficient."""
    most: int
    is_end: bool = False
    """Whether it says that everything is done in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCells:
    """What a stage replica does, in cells and units; pairs are of what is kept and of what recomputes."""

    devices: tuple[str, ...]
    forward: int
    returning: tuple[int, int]
    rest: int
    held: tuple[int, int]
    """From F to the end of I."""
    during: tuple[int, int]
    """More of it while I runs."""
    kept: int
    """From I to the end of W."""
    closing: int

    @property
    def cells(self) -> tuple[int, ...]:
        """Durations by kind."""
        return (self.forward, self.forward, *self.returning, self.rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFamily:
    """Rows that say the same of every cell from `since` on."""

    entries: tuple[Entry, ...]
    first: int
    """Number of the first row."""
    stride: int = 1
    """Between the numbers of two cells."""
    since: int = 0
    most: int = 0
    is_end: bool = False
    owner: int = -1

    def number(self, t: int) -> int:
        """Of the row of a cell."""
        return self.first + self.stride * (t - self.since)


def is_rest(family: RowFamily) -> bool:
    """Whether it is about W alone, or about W that follow I."""
    return family.entries[0][1] == _W


def there_and_back(
    n: int, replicas: Sequence[ReplicaCells], *, transfers: tuple[Sequence[tuple[int, int, int]], ...]
) -> int:
    """The least from the start of a microbatch's F to the start of its I: there and back by the longest way."""
    (forwards, backwards), there = transfers, {n: 0}
    for sender, receiver, ticks in forwards:
        if sender in there:
            there[receiver] = max(there.get(receiver, 0), there[sender] + replicas[sender].forward + ticks)
    back = {m: at + replicas[m].forward for m, at in there.items()}
    for sender, receiver, ticks in backwards:
        if sender in back and receiver in back:
            back[receiver] = max(back[receiver], back[sender] + min(replicas[sender].returning) + ticks)
    return back[n]


class CellRows(Sequence[CellRow]):
    """All rows, numbered as certificates name them."""

    def __init__(
        self,
        replicas: Sequence[ReplicaCells],
        *,
        transfers: tuple[tuple[tuple[int, int, int], ...], ...],
        room: Mapping[str, int],
        count: int,
        cells: int,
    ) -> None:
        """`transfers`: (sender, receiver, cells) of activations and of gradients."""
        self.replicas, self.room, self.num_microbatches, self.cells = replicas, room, count, cells
        self.forwards, self.backwards = transfers
        self.blocks: list[tuple[int, tuple[RowFamily, ...]]] = []
        """Numbers of first rows, each with families whose rows alternate."""
        self.size = 0
        devices: dict[str, list[int]] = {}
        for n, replica in enumerate(replicas):
            self._add_replica(n)
            for device in replica.devices:
                devices.setdefault(device, []).append(n)
        for sender, receiver, ticks in self.forwards:
            # the k-th F begins after k F have ended where its input comes from
            sent = self._forwards(sender, -ticks - replicas[sender].forward, factor=-1)
            self._add(((*self._forwards(receiver, 0, factor=1), *sent), 0, -1))
        for sender, receiver, ticks in self.backwards:
            began = [(receiver, _I + variant, 0, 1) for variant in (KEPT, RECOMPUTED)]
            self._add(((*began, *self._returned(sender, -ticks, factor=-1)), 0, -1))
        for device, numbers in devices.items():
            self._add((self._one_at_a_time(numbers), 1, numbers[0]), (self._memory(numbers), room[device], numbers[0]))

    def families(self) -> Iterator[RowFamily]:
        """All families of rows, in the order of their numbers."""
        return (family for _, families in self.blocks for family in families)

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, number: int) -> CellRow: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[CellRow]: ...
    def __getitem__(self, number: int | slice) -> CellRow | Sequence[CellRow]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self.size))]
        if not 0 <= number < self.size:
            raise IndexError(number)
        _, families = self.blocks[bisect_right(self.blocks, number, key=lambda block: block[0]) - 1]
        for family in families:
            t, rest = divmod(number - family.first, family.stride)
            if rest == 0 and 0 <= t <= self.cells - family.since:
                return self._row(family, t + family.since)
        raise AssertionError(number)

    def __iter__(self) -> Iterator[CellRow]:
        return (self[number] for number in range(self.size))

    def _row(self, family: RowFamily, t: int) -> CellRow:
        """Nothing has begun before 0, and all has in the end."""
        terms: dict[int, int] = {}
        for n, kind, after, factor in family.entries:
            if t + after >= 0 and factor:
                column = (n * KINDS + kind) * (self.cells + 1) + min(t + after, self.cells)
                terms[column] = terms.get(column, 0) + factor
        held = {column: factor for column, factor in terms.items() if factor}
        return CellRow(held, family.most, family.is_end)

    def _add(self, *alike: tuple[tuple[Entry, ...], int, int]) -> None:
        """Families of all cells that alternate: (entries, most, owner)."""
        families = tuple(
            RowFamily(entries=entries, first=self.size + x, stride=len(alike), most=most, owner=owner)
            for x, (entries, most, owner) in enumerate(alike)
        )
        self.blocks.append((self.size, families))
        self.size += len(alike) * (self.cells + 1)

    def _add_replica(self, n: int) -> None:
        """Counts grow; a microbatch returns its way later as what it left as; W follow I; in the end all is done."""
        own, last, first = self.replicas[n], self.cells, self.size
        lag = there_and_back(n, self.replicas, transfers=(self.forwards, self.backwards))
        back = [((n, _I + variant, 0, 1), (n, _F + variant, -lag, -1)) for variant in (KEPT, RECOMPUTED)]
        rest = ((n, _W, 0, 1), *self._returned(n, 0, factor=-1))
        grow = [((n, kind, -1, 1), (n, kind, 0, -1)) for kind in range(KINDS)]
        after, before = [*back, rest], KINDS + len(back) + 1
        families = [RowFamily(entries=each, first=first + x, stride=before) for x, each in enumerate(after)]
        families += [
            RowFamily(entries=each, first=first + len(after) + kind, stride=before, since=1, owner=n)
            for kind, each in enumerate(grow)
        ]
        self.blocks.append((first, tuple(families)))
        self.size += len(after) + before * last
        for variant in (KEPT, RECOMPUTED):
            self._add_last(((n, _F + variant, 0, 1), (n, _I + variant, 0, -1)))
        most = -self.num_microbatches
        self._add_last(tuple(self._returned(n, -own.closing, factor=-1)), most=most, is_end=True)
        self._add_last(((n, _W, -own.closing - own.rest, -1),), most=most, is_end=True)

    def _add_last(self, entries: tuple[Entry, ...], *, most: int = 0, is_end: bool = False) -> None:
        """A row of the last cell alone."""
        family = RowFamily(entries=entries, first=self.size, since=self.cells, most=most, is_end=is_end)
        self.blocks.append((self.size, (family,)))
        self.size += 1

    def _forwards(self, n: int, after: int, *, factor: int) -> list[Entry]:
        """F that have begun by then."""
        return [(n, _F + variant, after, factor) for variant in (KEPT, RECOMPUTED)]

    def _returned(self, n: int, after: int, *, factor: int) -> list[Entry]:
        """I that have ended by then."""
        own = self.replicas[n]
        return [(n, _I + variant, after - own.returning[variant], factor) for variant in (KEPT, RECOMPUTED)]

    def _one_at_a_time(self, numbers: Sequence[int]) -> tuple[Entry, ...]:
        """Of the actions of a device, at most one has begun and ends later."""
        return tuple(
            entry
            for n in numbers
            for kind, time in enumerate(self.replicas[n].cells)
            for entry in ([(n, kind, 0, 1), (n, kind, -time, -1)] if time else [])
        )

    def _memory(self, numbers: Sequence[int]) -> tuple[Entry, ...]:
        """What a device holds once all is done that ends by then, and what is running has begun."""
        entries: list[Entry] = []
        for n in numbers:
            own = self.replicas[n]
            for variant in (KEPT, RECOMPUTED):
                held, during, ended = own.held[variant], own.during[variant], -own.returning[variant]
                entries += [(n, _F + variant, 0, held), (n, _I + variant, ended, -held)]
                entries += [(n, _I + variant, 0, during), (n, _I + variant, ended, -during)]
                entries += [(n, _I + variant, ended, own.kept)]
            entries.append((n, _W, -own.rest, -own.kept))
        return tuple(entries)
