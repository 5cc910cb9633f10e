"""Where stages of a loop begin and end: cuts that balance ranks, improved by single layers that change stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from planner.bounds.loop.loop_order import order_of
from planner.recipes.layer_chain import BACKWARD, FORWARD, Integers, LayerChain

MOST_PLAYED = 16
"""Microbatches per rank that are played at most; more repeat what these do."""

_SEARCHED = 8
"""Microbatches per rank by which cuts are compared."""

_DEEP, _BEAM, _ROUNDS, _STALE = 3, 8, 12, 3
"""Numbers of chunks that are searched further, cuts that are kept, rounds, and those without a better cut."""

_PLAYED_AT_ONCE, _MOST_AT_ONCE = 6_000_000, 1_024
"""Actions of all cuts that are played at once, about, and the cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCut:
    """The best cut for a number of chunks."""

    chunks: int
    """Stages per rank."""
    bounds: tuple[int, ...]
    """Layers before each stage, and all of them."""
    time: int
    """Ticks of all microbatches that are played, by the worst of the costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutQuestion:
    """A chain on so many ranks."""

    chain: LayerChain
    ranks: int
    microbatches: int
    """At most `MOST_PLAYED` per rank."""

    def stage_times(self, cuts: Integers, *, variant: int) -> Integers:
        """[2, stages, cuts] for [cuts, stages + 1] bounds."""
        costs = self.chain.costs[variant]
        sums = numpy.concatenate((numpy.zeros((2, 1), numpy.int64), numpy.cumsum(costs, axis=1)), axis=1)
        return numpy.diff(sums.take(cuts.T, axis=1), axis=1)

    def least(self, cuts: Integers) -> Integers:
        """[cuts] no less than what comes before a rank's work, the work, and what follows it."""
        found, places = numpy.zeros(len(cuts), dtype=numpy.int64), numpy.ascontiguousarray(cuts.T)
        for costs in self.chain.costs:
            times = numpy.diff(numpy.cumsum([0, *costs.sum(axis=0)]).take(places), axis=0)
            work = times.reshape(-1, self.ranks, len(cuts)).sum(axis=0)
            work *= self.microbatches
            work[1:] += numpy.cumsum(times[: self.ranks - 1] + 2 * self.chain.transfer, axis=0)
            numpy.maximum(found, work.max(axis=0), out=found)
        return found

    def play(self, cuts: Integers, *, most: int, limit: int | None = None) -> Integers:
        """[cuts] when all has ended; of more than `most` microbatches per rank the rest by the busiest rank's work.

        `limit`: of a cut that takes longer by some of the costs, the others need not be looked at.
        """
        found = numpy.zeros(len(cuts), dtype=numpy.int64)
        for variant in range(len(self.chain.costs)):
            is_open = numpy.full(len(cuts), True) if limit is None else found <= limit
            if is_open.any():
                ends = self._play_by(self.stage_times(cuts[is_open], variant=variant), most=most)
                found[is_open] = numpy.maximum(found[is_open], ends)
        return found

    def _play_by(self, times: Integers, *, most: int) -> Integers:
        played = min(self.microbatches, most * self.ranks)
        order = order_of(ranks=self.ranks, chunks=times.shape[1] // self.ranks, count=played)
        rest = (self.microbatches - played) * self._rank_work(times).max(axis=0)
        found: Integers = order.play(times, hops=(self.chain.transfer, self.chain.transfer)) + rest
        return found

    def _rank_work(self, times: Integers) -> Integers:
        """[ranks, cuts] of a microbatch."""
        work = times[FORWARD] + times[BACKWARD]
        found: Integers = work.reshape(-1, self.ranks, work.shape[1]).sum(axis=0)
        return found


def search_cuts(question: CutQuestion, *, chunks: Sequence[int]) -> FoundCut:
    """The best cut over these numbers of chunks; of equal ones that with fewest."""
    beams = [_Beam(question, chunks=each) for each in chunks]
    beams.sort(key=lambda beam: (beam.best, beam.chunks))
    found = []
    for beam in beams[:_DEEP]:
        beam.improve()
        times = question.play(beam.cuts, most=MOST_PLAYED)
        place = int(times.argmin())
        found.append(FoundCut(chunks=beam.chunks, bounds=tuple(beam.cuts[place].tolist()), time=int(times[place])))
    return min(found, key=lambda each: (each.time, each.chunks))


class _Beam:
    """The best cuts so far for one number of chunks."""

    def __init__(self, question: CutQuestion, *, chunks: int) -> None:
        self.question, self.chunks = question, chunks
        starts = sorted(set(_starts(question, chunks=chunks)))
        self.seen = set(starts)
        self.cuts = numpy.array(starts, dtype=numpy.int64)
        self.times = question.play(self.cuts, most=_SEARCHED)
        self._keep()

    @property
    def best(self) -> int:
        """The least time."""
        return int(self.times[0])

    def _keep(self) -> None:
        order = numpy.lexsort((*self.cuts.T, self.times))[:_BEAM]
        self.cuts, self.times = self.cuts[order], self.times[order]

    def improve(self) -> None:
        """Let single layers change stages as long as that leads on."""
        stale = 0
        for _ in range(_ROUNDS):
            before, new = self.best, self._new_neighbours()
            if not len(new):
                return
            self.cuts = numpy.concatenate((self.cuts, new))
            limit = int(self.times[-1]) if len(self.times) == _BEAM else None
            times = self.question.play(new, most=_SEARCHED, limit=limit)
            self.times = numpy.concatenate((self.times, times))
            self._keep()
            stale = 0 if self.best < before else stale + 1
            if stale >= _STALE:
                return

    def _new_neighbours(self) -> Integers:
        """Those that may be better, most promising first."""
        near = _neighbours(self.cuts)
        least = self.question.least(near) if len(near) else near[:, 0]
        near, least = near[least < self.best], least[least < self.best]
        actions = 2 * min(self.question.microbatches, _SEARCHED * self.question.ranks) * (self.cuts.shape[1] - 1)
        most, found = min(_MOST_AT_ONCE, max(1, _PLAYED_AT_ONCE // actions)), list[tuple[int, ...]]()
        for number in numpy.argsort(least, kind="stable"):
            if len(found) == most:
                break
            if (row := tuple(near[number].tolist())) not in self.seen:
                self.seen.add(row)
                found.append(row)
        return numpy.array(found, dtype=numpy.int64)


def _neighbours(cuts: Integers) -> Integers:
    """Cuts in which one stage has a layer less and another one more, those between moved along; none empty."""
    stages = cuts.shape[1] - 1
    can_give = (numpy.diff(cuts, axis=1) > 1)[:, :, None]
    number, giving, taking = numpy.nonzero(can_give & ~numpy.eye(stages, dtype=bool))
    until = numpy.tri(stages, stages + 1, dtype=numpy.int8)
    return cuts[number] + (until[giving] - until[taking])


def _starts(question: CutQuestion, *, chunks: int) -> Iterator[tuple[int, ...]]:
    """Stages of equal work, and neighbouring ones with a block more than the others."""
    yield _equal_work(question, stages=chunks * question.ranks)
    tail = sum(letter in ("m", "L") for letter in question.chain.letters)
    yield from _with_a_run(question, chunks=chunks, tail=(0,) * tail)
    if tail == 2 and question.ranks > 1:
        yield from _with_a_run(question, chunks=chunks, tail=(1, 0))


def _equal_work(question: CutQuestion, *, stages: int) -> tuple[int, ...]:
    """Bounds where so many equal parts of the work end, moved so that no stage is empty."""
    sums = numpy.cumsum(sum(costs.sum(axis=0) for costs in question.chain.costs))
    size = len(sums)
    bounds = [0, *(1 + numpy.searchsorted(sums, sums[-1] * numpy.arange(1, stages) // stages)).tolist(), size]
    for number in range(1, stages):
        bounds[number] = max(bounds[number], bounds[number - 1] + 1)
    for number in range(stages - 1, 0, -1):
        bounds[number] = min(bounds[number], bounds[number + 1] - 1)
    return tuple(bounds)


def _with_a_run(question: CutQuestion, *, chunks: int, tail: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Blocks in equal stages, those left over in a run of neighbouring stages anywhere, even around the end.

    `tail`: per layer behind the blocks its stage, counted from the last one. For what a stage has beside blocks, about
    as many are taken from it, then from the other stages of its rank.
    """
    stages, work = chunks * question.ranks, sum(costs.sum(axis=0) for costs in question.chain.costs)
    blocks = len(work) - len(tail)
    unit, own, extra = work[:blocks].mean(), numpy.zeros(stages, numpy.int64), numpy.zeros(stages)
    extra[0] = work[0] / unit - 1
    for time, behind in zip(work[blocks:].tolist(), tail, strict=True):
        own[stages - 1 - behind] += 1
        extra[stages - 1 - behind] += time / unit
    places = numpy.arange(stages)
    for beside in (numpy.floor(extra).astype(int), numpy.ceil(extra).astype(int)):
        each, more = divmod(blocks + int(beside.sum()), stages)
        for first in range(stages if more else 1):
            sizes = each + ((places - first) % stages < more) - beside
            if (sizes := _evened(sizes.reshape(chunks, -1), own.reshape(chunks, -1) == 0)) is not None:
                yield (0, *numpy.cumsum(sizes.reshape(-1) + own).tolist())


def _evened(sizes: Integers, least: Integers) -> Integers | None:
    """[chunks, ranks] as many blocks on every rank, the last chunks giving what others lack; None without enough."""
    for rank, chunk in zip(*numpy.nonzero((sizes < least).T), strict=True):
        for giving in range(len(sizes))[::-1]:
            moved = min(least[chunk, rank] - sizes[chunk, rank], sizes[giving, rank] - least[giving, rank])
            if giving != chunk and moved > 0:
                sizes[giving, rank] -= moved
                sizes[chunk, rank] += moved
    return sizes if (sizes >= least).all() else None
