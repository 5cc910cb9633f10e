"""What the memory of a device leaves to do before its first I, and after its last F, of all its stage replicas
together.

Rules that look at one stage replica at a time give every stage replica the whole memory. Proof, in the symbols of
docs/proofs/bounds.md. Before its c-th I starts, the device runs at most A + (c - 1) P: c - 1 microbatches have had an
I, and those of all other F are held. So it idles for at least s(c) - A - (c - 1) P. After the end of the c-th F from
the last it runs at most G + (c - 1) P, and idles for at least t(c) - G - (c - 1) P. Both add up if
c + c' <= L M + 1 - N: when the c'-th F from the last starts, L M - c' + 1 have started, of which at most N are held. So
the c-th I has started before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy

from planner.bounds.minimum_costs import Integers
from planner.bounds.order.stage_replicas import StageReplica

MAX_COUNTED = 64
"""Most microbatches for which all numbers of one or two stage replicas are looked at; beyond, parts of microbatches may
fit."""

_PART_BITS = 20
"""Bits of what sizes are compared in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTogether:
    """The most that fits into a device at a time."""

    num_begun: int
    """F that may have started without their I having ended."""
    begun_ns: int
    """Work of as many F."""
    left_ns: int
    """Work of backward passes, and of what is left of those whose I has ended."""
    round_ns: int
    """Work of the F and the backward pass of one microbatch in a stage replica, at most."""
    work_ns: int
    num_forwards: int
    """F of all stage replicas."""

    def lower_bound(self, starts: Integers, tails: Integers, *, first: int, last: int) -> int:
        """The least end, tails included: work, and the time without any before some I and after some F.

        `starts`: when the I of the device, in time, start at the earliest. `tails`: what follows the end of its F, from
        the last one back. `first` precedes all that it does, `last` follows all.
        """
        before = starts - self.begun_ns - numpy.arange(len(starts), dtype=numpy.int64) * self.round_ns
        after = tails - self.left_ns - numpy.arange(len(tails), dtype=numpy.int64) * self.round_ns
        found = self.work_ns + max(first, int(before.max())) + last
        found = max(found, self.work_ns + first + max(last, int(after.max())))
        distance = self.num_forwards + 1 - self.num_begun
        if distance >= 2:
            numbers = numpy.arange(1, min(distance, len(starts) + 1))
            behind = numpy.maximum.accumulate(after)[numpy.minimum(distance - numbers, len(after)) - 1]
            found = max(found, self.work_ns + int((before[: len(numbers)] + behind).max()))
        return found


def make_held_together(replicas: Sequence[StageReplica], *, budget: int, count: int, outer: int | None) -> HeldTogether:
    """What fits into `budget` bytes. `outer`: the one of two stage replicas that holds all of the other, if any."""
    forward, backward = (
        [replica.forward for replica in replicas],
        [replica.returning + replica.rest for replica in replicas],
    )
    held = _Fit(tuple(replica.held for replica in replicas), budget=max(budget, 0), count=count, outer=outer)
    return HeldTogether(
        num_begun=held.most([1] * len(replicas)),
        begun_ns=held.most(forward),
        left_ns=held.most(backward, pending=[(replica.kept, replica.rest) for replica in replicas]),
        round_ns=max(f + b for f, b in zip(forward, backward, strict=True)),
        work_ns=count * (sum(forward) + sum(backward)),
        num_forwards=count * len(replicas),
    )


@dataclass(frozen=True)
class _Fit:
    """Microbatches of stage replicas, each at most `count` times, in `budget` bytes."""

    sizes: tuple[int, ...]
    budget: int
    count: int
    outer: int | None

    def most(self, profit: Sequence[int], *, pending: Sequence[tuple[int, int]] = ()) -> int:
        """The most that what fits is worth. `pending`: bytes and worth of other things that share the memory."""
        if len(self.sizes) > 2 or self.count > MAX_COUNTED:
            items = [*zip(self.sizes, profit, strict=True), *pending]
            left = numpy.array([self.budget], dtype=numpy.int64)
            return min(int(_fill(left, items, count=self.count)[0]), self.count * sum(profit))
        if self.count * (sum(self.sizes) + sum(size for size, _ in pending)) <= self.budget:
            return self.count * sum(profit)
        held = value = numpy.zeros(1, dtype=numpy.int64)
        axes = [numpy.arange(_fitting(self.budget, size, count=self.count) + 1) for size in self.sizes]
        numbers = numpy.meshgrid(*axes, indexing="ij")
        for number, size, each in zip(numbers, self.sizes, profit, strict=True):
            held, value = held + number * size, value + number * each
        fits = held <= self.budget
        if self.outer is not None:
            fits &= numbers[self.outer] >= numbers[1 - self.outer]
        value, left = value[fits], self.budget - held[fits]
        value = value + _most_pending(left, pending, count=self.count)
        return min(int(value.max()), self.count * sum(profit))


def _fitting(budget: int, size: int, *, count: int) -> int:
    """How many of so many bytes fit, `count` at most."""
    return min(budget // size, count) if size else count


def _most_pending(left: Integers, pending: Sequence[tuple[int, int]], *, count: int) -> Integers:
    """Per number of bytes: the most that up to two kinds of items are worth in them, `count` of each at most."""
    most = numpy.zeros(len(left), dtype=numpy.int64)
    (size, profit), (other_size, other_profit) = (*pending, (0, 0), (0, 0))[:2]
    for number in range(1 + (_fitting(int(left.max(initial=0)), size, count=count) if profit else 0)):
        space = left - number * size
        others = numpy.minimum(space // other_size, count) if other_size else count
        most = numpy.where(space >= 0, numpy.maximum(most, number * profit + others * other_profit), most)
    return most


def _fill(left: Integers, items: Sequence[tuple[int, int]], *, count: int) -> Integers:
    """Per number of bytes: the most that items are worth in them, `count` of each at most.

    Items of one size are counted whole; where sizes differ, a part of one may fill what is left of the memory.
    """
    found = numpy.zeros(len(left), dtype=numpy.int64)
    worthy = [(size, profit) for size, profit in items if profit]
    has_parts = len({size for size, _ in worthy if size}) > 1
    for size, profit in sorted(worthy, key=lambda item: Fraction(item[0], item[1])):
        if size == 0:
            found += count * profit
            continue
        whole = numpy.minimum(left // size, count)
        left = left - whole * size
        found += whole * profit
        if has_parts:
            part = numpy.where(whole < count, left, 0)
            left = left - part
            found += _part_of(part, size, profit=profit)
    return found


def _part_of(part: Integers, size: int, *, profit: int) -> Integers:
    """`part / size` of the worth, rounded up, without products beyond 64 bits."""
    shift = max(0, size.bit_length() - min(_PART_BITS, 62 - profit.bit_length()))
    share: Integers = numpy.minimum((-(-part >> shift)) * profit // max(size >> shift, 1) + (part > 0), profit)
    return share
