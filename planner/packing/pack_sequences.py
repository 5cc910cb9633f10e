"""Sequences of different length, put together into packs and dealt to the pipelines of a job: one decision.

A pack is a microbatch: at most so many tokens, and the times of its sequences added up. Every pipeline runs equally
many packs under 1F1B, as trainers want it. Few packs leave pipelines empty at both ends; many leave long sequences
among short ones. So several numbers are tried, with equal packs and with shapes that rise to the longest pack and fall
behind it (`pack_shapes`). No clock is asked: all ranks find the same.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf
from operator import index
from typing import NamedTuple, Protocol

import numpy

from planner.bounds.listed.pack_prices import bound_by_prices
from planner.bounds.listed.packed_sequences import Table, bound_packs, fewest_packs
from planner.packing.pack_shapes import Packs, Reals, fill_shapes, play_shapes, shape_pipelines, shift_work
from planner.packing.play_packs import play_packs

_NUMBERS_OF_PACKS = 5
"""That are tried with about as much to do each."""
_PARTS = (0.3, 0.5, 0.65, 0.75)
"""Of the most packs that there may be: numbers that are tried with shapes."""
_ROUNDS = 6
"""The best shapes are filled again, each time with less to do for pipelines that ended late."""
_DAMPING = 0.9
_EVEN = 1.002
"""Pipelines end together if none ends later than so many times the mean."""

_LONGEST_NS = 2.0**60
"""Nothing is said of longer times: 64 bits would not hold their sums."""


class SequenceTimes(Protocol):
    """What a stage takes: `planner.packing.pack_times.PackTimes`, or a table (`planner.dealing.StageTimes`)."""

    @property
    def of_pack(self) -> tuple[int, int]:
        """Forward and backward of a pack beside its sequences."""

    def at(self, length: int) -> tuple[float | Fraction, float | Fraction]:
        """Forward and backward of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """Which sequences are packed together, and which pipeline runs which packs."""

    packs: tuple[tuple[int, ...], ...]
    """Sequences, by their place in what was given."""
    pipelines: tuple[tuple[int, ...], ...]
    """Per pipeline its packs, by their place in `packs`, in the order in which to run them; equally many."""
    largest_ns: int
    """When the slowest pipeline ends under 1F1B."""
    in_order_ns: int | None
    """The same of packs that are filled in input order, which this is never worse than; None: they do not come out."""
    lower_bound_ns: int
    """No packs of at most so many tokens end before, on as many pipelines, in any order."""

    @property
    def gap(self) -> float:
        """(largest - lower bound) / largest."""
        return (self.largest_ns - self.lower_bound_ns) / self.largest_ns if self.largest_ns else 0.0

    def of_pipeline(self, pipeline: int) -> tuple[tuple[int, ...], ...]:
        """The sequences of every pack of a pipeline, in the order in which to run them."""
        return tuple(self.packs[number] for number in self.pipelines[pipeline])


class _Sequences(NamedTuple):
    """N sequences on S stages."""

    lengths: tuple[int, ...]
    forward: Table
    """[N, S]"""
    backward: Table
    """[N, S]"""
    load: list[int]
    """On the stage with most to do."""
    own: Table
    """[2, S] of a pack beside its sequences."""
    cap: int
    transfer_ns: int

    def ends(self, pipelines: Sequence[Packs]) -> Table:
        """[R] when each of them ends; they have equally many packs."""
        order = numpy.array([number for each in pipelines for pack in each for number in pack], dtype=numpy.int64)
        begins = numpy.cumsum([0, *(len(pack) for each in pipelines for pack in each)])[:-1]
        forward, backward = (
            (numpy.add.reduceat(row[order], begins, axis=0) + own).reshape(len(pipelines), -1, row.shape[1])
            for row, own in zip((self.forward, self.backward), self.own, strict=True)
        )
        return play_packs(forward, backward, transfer_ns=self.transfer_ns)

    def work(self, pack: Sequence[int]) -> int:
        """Of its sequences, on the stage with most to do."""
        return sum(self.load[number] for number in pack)


def pack(
    lengths: Sequence[int],
    pipelines: int,
    *,
    cap: int,
    stages: Sequence[SequenceTimes],
    transfer_ns: int = 0,
    multiple: int = 1,
    number: int | None = None,
) -> PackedSequences:
    """Pack and deal sequences by their lengths in tokens.

    Every pipeline runs `number` packs; without it, what is best of the multiples of `multiple`.

    Raises ValueError for a sequence longer than `cap`, and for too few sequences to give every pipeline as many packs.
    """
    lengths = whole_lengths(lengths, cap=cap)
    is_exact = isinstance(transfer_ns, float) and transfer_ns % 1 == 0  # as computed times are
    transfer_ns = whole_number("transfer_ns", int(transfer_ns) if is_exact else transfer_ns, least=0)
    pipelines, multiple = whole_number("pipelines", pipelines), whole_number("multiple", multiple)
    number = None if number is None else whole_number("number", number)
    _require_sane(lengths, pipelines, stages=stages, multiple=multiple, number=number)
    given, least = _read(lengths, stages, cap=cap, transfer_ns=transfer_ns)
    fewest, unit = fewest_packs(lengths, cap), pipelines * (number or multiple)
    filled = fill_in_order(lengths, unit, cap=cap)
    if filled is not None and number is not None and len(filled) > unit:
        filled = None
    best = None if filled is None else [filled[rank::pipelines] for rank in range(pipelines)]
    in_order_ns = None if best is None else int(given.ends(best).max())
    largest: float = inf if in_order_ns is None else in_order_ns
    for assignments, ends in _candidates(given, pipelines, fewest=fewest, unit=unit, number=number):
        if ends.max() < largest:
            best, largest = assignments, int(ends.max())
    if best is None:
        wanted = f"a multiple of {multiple}" if number is None else f"number = {number}"
        raise ValueError(
            f"{len(lengths)} sequences make {fewest} packs of cap = {cap:,} tokens or more, and none are found of "
            f"which {pipelines} pipelines run equally many, {wanted}; give more sequences, or a "
            "larger cap"
        )
    packs = tuple(tuple(sorted(each)) for assignment in best for each in assignment)
    count = len(best[0])
    return PackedSequences(
        packs=packs,
        pipelines=tuple(tuple(range(rank * count, (rank + 1) * count)) for rank in range(pipelines)),
        largest_ns=int(largest),
        in_order_ns=in_order_ns,
        lower_bound_ns=_bound(given, least, pipelines=pipelines, fewest=max(fewest, unit), number=number),
    )


def _bound(given: _Sequences, least: tuple[Table, Table], *, pipelines: int, fewest: int, number: int | None) -> int:
    """By times that are rounded down."""
    time = bound_packs(*least, own=given.own, num_packs=fewest, pipelines=pipelines, transfer_ns=given.transfer_ns)
    return bound_by_prices(
        *least,
        own=given.own,
        packs=(-(-fewest // pipelines), number or len(given.lengths) // pipelines),
        pipelines=pipelines,
        hop=2 * given.transfer_ns,
        time=time,
    )


def fill_in_order(lengths: Sequence[int], multiple: int, *, cap: int) -> Packs | None:
    """Packs as Megatron-LM's `dp_balanced` fills them: in input order, each until the next sequence does not fit.

    Then the last sequences of the last packs that have several get packs of their own, until the packs are a multiple;
    None where that does not come out. Pack k is run by pipeline k modulo their number.
    """
    packs, held = Packs(), cap
    for number, length in enumerate(lengths):
        if held + length > cap:
            packs.append([])
            held = 0
        packs[-1].append(number)
        held += length
    return _split_last(packs, multiple)


def _split_last(packs: Packs, multiple: int) -> Packs | None:
    at = len(packs) - 1
    while len(packs) % multiple and at >= 0:
        if len(packs[at]) > 1:
            packs.append([packs[at].pop()])
        else:
            at -= 1
    return None if len(packs) % multiple else packs


def _tight_packs(given: _Sequences, multiple: int) -> Packs | None:
    """Few packs: longest first, each into the fullest pack that has room; then split as those in input order."""
    packs, rooms = Packs(), list[tuple[int, int]]()
    for sequence in sorted(range(len(given.lengths)), key=lambda each: (-given.lengths[each], each)):
        length = given.lengths[sequence]
        found = bisect_left(rooms, (length, 0))
        if found == len(rooms):
            rooms.append((given.cap, len(packs)))
            packs.append([])
        left, place = rooms.pop(found)
        packs[place].append(sequence)
        insort(rooms, (left - length, place))
    return _split_last(packs, multiple)


def whole_lengths(lengths: Sequence[int], *, cap: int) -> list[int]:
    """The lengths as Python's integers, whose sums do not wrap as those of numpy's narrow ones.

    Raises ValueError for a length that is no whole number or that no pack has room for, and for what is no list.
    """
    cap = whole_number("cap", cap)
    try:
        if isinstance(lengths, Mapping | Set | bytes | bytearray):
            raise TypeError
        listed = list(lengths)
    except TypeError:  # None, and arrays without an axis
        told = type(lengths).__name__
        raise ValueError(f"lengths are {told}; give a list of them, in the order of the sequences") from None
    found = [whole_number(f"lengths[{number}]", length) for number, length in enumerate(listed)]
    for number, length in enumerate(found):
        if length > cap:
            raise ValueError(
                f"lengths[{number}] = {length:,}: a pack has cap = {cap:,} tokens; cut the sequence, or raise cap"
            )
    return found


def whole_number(name: str, value: object, *, least: int = 1) -> int:
    """The value as Python's integer; raises ValueError with its name for what is none, and for less than `least`."""
    try:
        is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
        found = index(None if is_truth else value)  # type: ignore[arg-type]
    except TypeError:
        shown = " ".join(repr(value).split())[:60]
        raise ValueError(f"{name} = {shown}: is no whole number; give an integer") from None
    if found < least:
        raise ValueError(f"{name} = {found:,}; give {least} or more")
    return found


def _require_sane(
    lengths: Sequence[int], pipelines: int, *, stages: Sequence[SequenceTimes], multiple: int, number: int | None
) -> None:
    whole_number("stages", len(stages))
    if number is not None and number % multiple:
        raise ValueError(f"number = {number} is no multiple of multiple = {multiple}; give one, or leave number out")
    each = number or multiple
    if len(lengths) < pipelines * each:
        raise ValueError(
            f"{len(lengths)} sequences for {pipelines} pipelines with {each} packs each; give {pipelines * each} or "
            "more, or use fewer pipelines"
        )


def _read(
    lengths: Sequence[int], stages: Sequence[SequenceTimes], *, cap: int, transfer_ns: int
) -> tuple[_Sequences, tuple[Table, Table]]:
    """The sequences with times rounded up, and their times rounded down."""
    known = {stage: {length: stage.at(length) for length in set(lengths)} for stage in set(stages)}
    own = [
        [whole_number("of_pack", int(time) if time % 1 == 0 else time, least=0) for time in stage.of_pack]
        for stage in stages
    ]
    most = max(float(time) for times in known.values() for both in times.values() for time in both)
    most += max(map(max, own)) + transfer_ns
    if most * len(lengths) * len(stages) > _LONGEST_NS:
        raise ValueError(f"a sequence in a pack takes {most:.3g} ns: {len(lengths)} are too much; shorten it")
    place = {length: number for number, length in enumerate(known[stages[0]])}
    rows = numpy.array([place[length] for length in lengths])
    up, down = (
        [
            numpy.stack(
                [numpy.array([to_int(both[direction]) for both in known[stage].values()])[rows] for stage in stages], 1
            )
            for direction in (0, 1)
        ]
        for to_int in (ceil, floor)
    )
    loads = up[0] + up[1]
    busiest = int(loads.sum(axis=0).argmax())
    given = _Sequences(
        lengths=tuple(lengths),
        forward=up[0],
        backward=up[1],
        load=loads[:, busiest].tolist(),
        own=numpy.array(own, dtype=numpy.int64).T,
        cap=cap,
        transfer_ns=transfer_ns,
    )
    return given, (down[0], down[1])


def _candidates(
    given: _Sequences, pipelines: int, *, fewest: int, unit: int, number: int | None
) -> Iterator[tuple[list[Packs], Table]]:
    """Of several numbers of packs who runs which, in order, and when each ends."""
    least, most = -(-fewest // unit), 1 if number else len(given.lengths) // unit
    if most < least:
        return
    steps = _NUMBERS_OF_PACKS - 1
    counts = {min(most, max(least, round(least * (most / least) ** (step / steps)))) for step in range(steps + 1)}
    several = [_even_packs(given, count * unit) for count in sorted(counts, reverse=True)]
    if None in several:
        several.append(_tight_packs(given, unit))
    for packs in several:
        if packs is None or number not in (None, len(packs) // pipelines):
            continue
        assignments = [_short_at_ends(each) for each in _balance_work(given, packs, pipelines=pipelines)]
        yield assignments, given.ends(assignments)
    parts = {min(most, max(least, round(most * part))) for part in _PARTS}
    if given.forward.shape[1] > 1:
        yield from _shaped(given, pipelines, counts=[count * unit // pipelines for count in sorted(parts)])


def _shaped(given: _Sequences, pipelines: int, *, counts: Sequence[int]) -> Iterator[tuple[list[Packs], Table]]:
    """Pipelines whose packs rise to the longest one and fall behind it, the best filled until they end together."""
    order = sorted(range(len(given.load)), key=lambda each: -given.load[each])
    work, lengths = [given.load[each] for each in order], [given.lengths[each] for each in order]
    total = sum(work)
    if not work[-1]:
        return
    forward, backward = ((row.sum(axis=0) / total).tolist() for row in (given.forward, given.backward))

    def fill(sizes: Reals) -> tuple[list[Packs], Table] | None:
        packs = fill_shapes(lengths, work, sizes=sizes, cap=given.cap)
        if packs is None:
            return None
        assignments = [[[order[each] for each in pack] for pack in each] for each in packs]
        return assignments, given.ends(assignments)

    filled = list[tuple[Reals, Table]]()
    every = play_shapes(max(counts), forward=forward, backward=backward, least=work[-1] / work[0])
    for shapes in every.of(counts) if every else ():
        sizes = shape_pipelines(work, pipelines, shapes=shapes)
        found = fill(sizes)
        if found is not None:
            yield found
            filled.append((sizes, found[1]))
    if not filled:
        return
    sizes, ends = min(filled, key=lambda each: int(each[1].sum()))
    for _ in range(_ROUNDS):
        if ends.max() < _EVEN * ends.mean():
            break
        sizes = shift_work(sizes, _DAMPING * (ends.mean() - ends) / ends * sizes.sum(axis=1))
        sizes *= total / sizes.sum()
        found = fill(sizes)
        if found is None:
            break
        yield found
        ends = found[1]


def _short_at_ends(falling: Packs) -> Packs:
    """Packs that are given from long to short: every second one before the longest, from short to long."""
    return falling[1::2][::-1] + falling[::2]


def _even_packs(given: _Sequences, number: int) -> Packs | None:
    """So many packs with about as much to do each; None where a sequence finds no room."""
    packs: Packs = [[] for _ in range(number)]
    room = [given.cap] * number
    heap, full = [(0, 0, place) for place in range(number)], list[tuple[int, tuple[int, int, int]]]()
    for sequence in sorted(range(len(given.lengths)), key=lambda each: (-given.load[each], each)):
        length = given.lengths[sequence]
        while full and -full[0][0] >= length:
            heapq.heappush(heap, heapq.heappop(full)[1])
        while heap and room[heap[0][2]] < length:
            each = heapq.heappop(heap)
            heapq.heappush(full, (-room[each[2]], each))
        if not heap:
            return None
        work, held, place = heap[0]
        packs[place].append(sequence)
        room[place] -= length
        heapq.heapreplace(heap, (work + given.load[sequence], held + 1, place))
    return packs


def _balance_work(given: _Sequences, packs: Packs, *, pipelines: int) -> list[Packs]:
    """Longest first to the pipeline with least to do that still wants packs; each has its packs from long to short."""
    count = len(packs) // pipelines
    found: list[Packs] = [[] for _ in range(pipelines)]
    heap = [(0, rank) for rank in range(pipelines)]
    for work, place in sorted((-given.work(each), place) for place, each in enumerate(packs)):
        before, rank = heapq.heappop(heap)
        found[rank].append(packs[place])
        if len(found[rank]) < count:
            heapq.heappush(heap, (before - work, rank))
    return found
