"""Shapes of pipelines: how much each of its packs has to do, so that stages rarely wait for each other.

A pipeline fills behind its first pack and drains behind its last one, and waits while its longest pack passes all
stages. So packs rise to the longest one, as fast as what runs before them hides them, and fall behind it. Shapes that
rise and fall in several ways are played; for a time and a longest pack, the one that does most work is taken.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy

from planner.packing.play_packs import play_packs

_FALLS = (0.5, 1, 2, 3, 4)
"""Packs behind the longest ones, as a multiple of the stages behind the first."""
_FLATS = (0, 0.5, 1, 2, 4)
"""Packs as long as the longest one beside it, as such a multiple."""
_RISES = (1.2, 1.7)
"""Packs before the longest one, as such a multiple, beside as many as there are until the shortest."""
_BEFORE, _SEVERAL, _NEXT = 7, 4, 0.94
"""Shapes for the longest sequences alone: fewer packs before them, how many at most, each as part of the one before."""
_LEAST = 1e-3
_UNIT = 1 << 24
_SLACK = 1.02
"""A pack may have so much more to do than its shape says."""
_STAYING = 0.9
"""How much less of a change goes to the longest pack than to short ones."""
_STEPS = 3
"""Of a secant to the time in which all pipelines do all work. More bring nothing on lengths as Megatron-LM's."""

Packs = list[list[int]]
Reals = numpy.ndarray[Any, numpy.dtype[numpy.float64]]


class Shapes(NamedTuple):
    """C shapes of K packs, whose longest pack does a work of 1."""

    sizes: Reals
    """[C, K]"""
    work: Reals
    """[C]"""
    time: Reals
    """[C] until the pipeline ends."""

    def of(self, counts: Sequence[int]) -> Iterator["Shapes"]:
        """Of every number of packs the shapes that need no more, with so many; those without work take no time."""
        has_work, rows = self.sizes > 0, self.sizes
        first, several = has_work.argmax(axis=1), has_work.sum(axis=1)
        for count in counts:
            fits = several <= count
            begin = numpy.maximum(first - (count - several + 1) // 2, 0)[fits, None]
            if fits.any():
                sizes = numpy.take_along_axis(rows[fits], begin + numpy.arange(count), axis=1)
                yield Shapes(sizes, self.work[fits], self.time[fits])


def play_shapes(count: int, *, forward: Sequence[float], backward: Sequence[float], least: float) -> Shapes | None:
    """Shapes of so many packs on stages that take so much of a work of 1; None where no shape has so few.

    `least`: the work of the shortest pack, where that of the longest is 1. Only with operations that IEEE 754 rounds
    in one way, so that all ranks find the same: no power, no logarithm.
    """
    ahead, back = sum(forward), sum(backward)
    sizes = list(_sizes(count, others=len(forward) - 1, ratio=max(ahead, back) / (min(ahead, back) or 1), least=least))
    if not sizes:
        return None
    rows = numpy.array(sizes if back >= ahead else [row[::-1] for row in sizes])
    units = (rows[:, :, None] * _UNIT * numpy.array([forward, backward])[:, None, None, :]).astype(numpy.int64)
    return Shapes(rows, rows.sum(axis=1), play_packs(units[0], units[1]) / _UNIT)


def _sizes(count: int, *, others: int, ratio: float, least: float) -> Iterator[list[float]]:
    """Shapes that rise by a factor from pack to pack, stay, and fall; packs that are left are at both ends, with 0."""
    factor, up = _rise(others, ratio), [1.0]
    while up[0] > max(least, _LEAST) * factor:
        up.insert(0, up[0] / factor)
    behind = list[list[float]]()
    for fall in sorted({max(1, round(part * others)) for part in _FALLS}):
        parts = [place / (fall + 1) for place in range(1, fall + 1)]
        bends = [[part * part for part in parts], [part * part * part for part in parts]]
        for flat in sorted({int(part * others) for part in _FLATS}):
            behind += [[1.0] * flat + [1 - bent for bent in each] for each in bends]
    rises = {min(len(up), max(1, round(part * others)) + 1) for part in _RISES} | {len(up)}
    shapes = [up[-rise:] + each for rise in sorted(rises) for each in behind]
    several = list(accumulate([1.0] + [_NEXT] * (_SEVERAL - 1), mul))
    shapes += [up[-1 - before : -1] + several[:long] for before in range(_BEFORE) for long in range(2, _SEVERAL + 1)]
    shapes += [[1.0] * alone for alone in range(1, 2 * others + 1)]
    for shape in shapes:
        free = count - len(shape)
        if free >= 0:
            yield [0.0] * (free - free // 2) + shape + [0.0] * (free // 2)


def _rise(others: int, ratio: float) -> float:
    """By which factor packs may rise: the backwards of so many before a pack take as long as its own way up."""
    low, high = 1.1, 1.1 + ratio
    for _ in range(30):
        middle = (low + high) / 2
        hidden, size = 0.0, 1.0
        for _ in range(others):
            size /= middle
            hidden += ratio * size
        low, high = (middle, high) if hidden > others else (low, middle)
    return low


def shape_pipelines(work: Sequence[int], pipelines: int, *, shapes: Shapes) -> Reals:
    """[R, K] what the packs of each pipeline shall have to do, all pipelines together as much as there is.

    `work`: of the sequences, falling. Each pipeline takes the longest sequences that are left and fit its shape.
    """
    total = sum(work)
    time, found = float(total / pipelines + work[0] * (shapes.time - shapes.work).min()), numpy.zeros((0, 0))
    for _ in range(_STEPS):
        found = _shape_in(work, pipelines, shapes=shapes, time=time)
        time += 0.8 * (total - found.sum()) / pipelines
    return numpy.asarray(found * (total / found.sum()))


def _shape_in(work: Sequence[int], pipelines: int, *, shapes: Shapes, time: float) -> Reals:
    """The same in so much time; what is left then is not done."""
    peaks = time / shapes.time
    left, found = list(work), list[Reals]()
    for wanting in range(pipelines, 0, -1):
        fitting = peaks >= left[0]
        if fitting.any():
            chosen = int(numpy.where(fitting, shapes.work * peaks, -1).argmax())
            found.append(shapes.sizes[chosen] * peaks[chosen])
        else:
            found.append(shapes.sizes[int(shapes.time.argmin())] * left[0])
        if wanting > 1:
            left = _left_over(left, found[-1]) or left[-1:]
    return numpy.array(found)


def shift_work(sizes: Reals, more: Reals) -> Reals:
    """[R, K] with so much more work in each pipeline, less of it in long packs: these stay where they are."""
    part = sizes * (1 - _STAYING * (sizes / sizes.max(axis=1, keepdims=True)) ** 2)
    return numpy.asarray(sizes + part * numpy.maximum(more / part.sum(axis=1), -0.5)[:, None])


def _left_over(work: Sequence[int], sizes: Reals) -> list[int]:
    """What does not fit beside longer ones, each into the pack with most room."""
    rooms = (-sizes[sizes > 0]).tolist()
    heapq.heapify(rooms)
    left = []
    for each in work:
        if each > -rooms[0] * _SLACK:
            left.append(each)
        else:
            heapq.heapreplace(rooms, rooms[0] + each)
    return left


def fill_shapes(lengths: Sequence[int], work: Sequence[int], *, sizes: Reals, cap: int) -> list[Packs] | None:
    """Packs of such sizes, longest sequence first into the pack with most room; None where a sequence finds no room.

    Sequences come with falling work. Packs that have nothing to do in a shape get one of the shortest each.
    """
    wanted, count, end = sizes.ravel().tolist(), sizes.shape[1], len(work)
    packs: Packs = [[] for _ in wanted]
    tokens = [cap] * len(packs)
    for place in sorted(range(len(wanted)), key=wanted.__getitem__):
        if wanted[place] >= work[-1]:
            break
        end -= 1
        packs[place].append(end)
        tokens[place] -= lengths[end]
    heap = [(-size, place) for place, size in enumerate(wanted) if not packs[place]]
    heapq.heapify(heap)
    waiting: list[tuple[int, float, int]] = []
    empty, is_last = len(heap), False
    for number in range(end):
        length = lengths[number]
        while waiting and -waiting[0][0] >= length:
            _, room, place = heapq.heappop(waiting)
            heapq.heappush(heap, (room, place))
        if end - number == empty and not is_last:
            heap, waiting, is_last = [each for each in heap if not packs[each[1]]], [], True
            heapq.heapify(heap)
        while heap and tokens[heap[0][1]] < length:
            room, place = heapq.heappop(heap)
            heapq.heappush(waiting, (-tokens[place], room, place))
        if not heap:
            return None
        room, place = heapq.heappop(heap)
        empty -= not packs[place]
        packs[place].append(number)
        tokens[place] -= length
        if not is_last:
            heapq.heappush(heap, (room + work[number], place))
    return [packs[begin : begin + count] for begin in range(0, len(packs), count)] if not empty else None
