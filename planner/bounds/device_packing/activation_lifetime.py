"""How long microbatches stay on a device with two stages, and how many fit; docs/proofs/refutations.md proves it."""

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from planner.bounds.minimum_costs import Integers

Mask = NDArray[numpy.bool_]

_MAX_AREA = 1 << 60
"""Bytes x time stay below this, so that 64 bits hold them."""

MAX_TRIED = 8
"""Numbers of microbatches of the first stage that are tried one by one; where there are more, the ends say enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StayTimes:
    """One stage of each pair: times and bytes of a microbatch on a replica."""

    stay: Integers
    """From the start of F to the end of I, at least; never more than the deadline + 1."""
    forward: Integers
    """F."""
    rest: Integers
    """The backward pass after the gradient has left."""
    tail: Integers
    """What follows the last I: `rest` and synchronisation, or the path of its gradient up the trunk."""
    held: Integers
    """Bytes from F to I."""
    stash: Integers
    """Bytes during I."""
    kept: Integers
    """Bytes from I to W."""
    rounded: Integers
    """1 where times are rounded down, 0 where they are exact: what is taken off has to be rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationLifetime:
    """Pairs of stages, each on one device; one entry per pair."""

    count: int
    """Microbatches."""
    deadline: int
    """Ticks by which every action and synchronisation has ended."""
    nested: Mask
    """Whether a microbatch that the second stage holds is held by the first, too."""
    free: Integers
    """Bytes left by both states and the receive buffers."""
    first: StayTimes
    """The stage further up."""
    second: StayTimes
    """Times of the stage further down."""
    between: Integers
    """From the end of F in the first stage to the start of F in the second, at least."""

    @property
    def fits(self) -> Mask:
        """Whether one microbatch fits at a time."""
        above = numpy.where(self.nested, self.first.held, 0)
        return self.free >= numpy.maximum(self.first.stash, above + self.second.stash)

    def first_in_rounds(self) -> Integers:
        """From the first F of the first stage to its last I.

        Where stages are nested, F beyond those that fit beside one microbatch in the second stage wait for its I there.
        """
        stay, forward = self.first.stay, self.first.forward
        flight = in_flight(self.free, self.first.held, count=self.count)
        beside = in_flight(self.free - self.second.held, self.first.held, count=self.count)
        until_second = forward + self.between + self.second.stay
        shorter = rounds(self.count, beside, stay=until_second, forward=forward) - until_second + stay
        found = rounds(self.count, flight, stay=stay, forward=forward)
        return numpy.where(self.nested, numpy.maximum(found, shorter), found)

    def second_in_rounds(self) -> Integers:
        """`first_in_rounds` of the second stage."""
        held = self.second.held + numpy.where(self.nested, self.first.held, 0)
        flight = in_flight(self.free, held, count=self.count)
        return rounds(self.count, flight, stay=self.second.stay, forward=self.second.forward)

    def area(self, filled: Integers, *, tail: Integers, last: Integers) -> Integers:
        """The time that bytes x time of all microbatches take, if as many bytes as possible are held all along.

        `filled`: the most between F and I. `tail` follows the last I, `last` the last W.
        """
        first, second = self.first, self.second
        largest = int(self.free.max(initial=0)) * (self.deadline + 1) * 4 * (self.count + 1)
        shift = max(0, largest.bit_length() - _MAX_AREA.bit_length() + 1)
        filled, free = -(-filled >> shift), -(-self.free >> shift)
        staying = self.count * ((first.held >> shift) * first.stay + (second.held >> shift) * second.stay)
        after = self.count * ((first.kept >> shift) * first.rest + (second.kept >> shift) * second.rest)
        until_tail = -(-staying // numpy.maximum(filled, 1)) + tail
        until_end = -(-(staying + after) // numpy.maximum(free, 1)) + last
        return numpy.where(self.fits, numpy.maximum(until_tail, until_end), 0)

    def filled(self) -> Integers:
        """The most bytes that microbatches between F and I can hold."""
        first, second = self.first.held, self.second.held
        most = self._most((first, second), profit=(first, second), nested=self.nested)
        return numpy.minimum(most, numpy.maximum(self.free, 0))

    def begun(self) -> Integers:
        """The most time of F before the first I: their microbatches are all held, nested ones in both stages."""
        profit = (self.first.forward + self.first.rounded, self.second.forward + self.second.rounded)
        inside = self.nested
        return self._most((self.first.held, self.second.held), profit=profit, nested=inside, inside=inside)

    def pending(self) -> Integers:
        """The most time of the rests of backward passes after the last I: they are all kept for."""
        separate = numpy.zeros(len(self.free), dtype=numpy.bool_)
        profit = (self.first.rest + self.first.rounded, self.second.rest + self.second.rounded)
        return self._most((self.first.kept, self.second.kept), profit=profit, nested=separate)

    def _most(
        self,
        sizes: tuple[Integers, Integers],
        *,
        profit: tuple[Integers, Integers],
        nested: Mask,
        inside: Mask | bool = False,
    ) -> Integers:
        """The largest worth of microbatches of both stages that fit, or somewhat more where very many do.

        If nested, as many of the first at least; if inside, one of the second at least. Once not all of the second fit
        beside, what fits of both is a line: none of it is worth more than the ends, rounded up.
        """
        first, second = sizes
        ones = numpy.broadcast_to(inside, self.free.shape).astype(numpy.int64)
        numbers = numpy.where(first > 0, (self.free - ones * second) // numpy.maximum(first, 1), self.count)
        numbers = numpy.where(self.free >= ones * second, numpy.minimum(numbers, self.count), -1)
        begin = self._all_beside(sizes, nested=nested, most=numbers)
        filling = _Filling(sizes=sizes, profit=profit, free=self.free - ones * second, ones=ones, nested=nested)
        last = numpy.minimum(numbers, begin + MAX_TRIED)
        most = numpy.where(begin <= numbers, filling.at(begin, most=self.count), 0)
        for more in range(1, int((last - begin).max(initial=0)) + 1):
            left = numpy.flatnonzero(begin + more <= last)
            most[left] = numpy.maximum(most[left], filling.part(left).at(begin[left] + more, most=self.count))
        left = numpy.flatnonzero(last < numbers)
        if len(left):
            many = filling.part(left)
            ends = numpy.maximum(many.rounded_up(last[left]), many.rounded_up(numbers[left]))
            most[left] = numpy.maximum(most[left], ends)
        return most

    def _all_beside(self, sizes: tuple[Integers, Integers], *, nested: Mask, most: Integers) -> Integers:
        """The most microbatches of the first stage beside which as many of the second fit as may be.

        That is all of them, or, if nested, as many as of the first: with fewer of the first there are no more.
        """
        first, second = sizes
        size = numpy.where(nested, first + second, first)
        left = numpy.where(nested, self.free, self.free - self.count * second)
        number = numpy.where(size > 0, left // numpy.maximum(size, 1), self.count)
        return numpy.clip(numpy.where(first > 0, number, most), 0, numpy.maximum(most, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filling:
    """Memory filled by microbatches of two stages; one entry per pair."""

    sizes: tuple[Integers, Integers]
    """Bytes of a microbatch."""
    profit: tuple[Integers, Integers]
    """Value of one microbatch of either stage."""
    free: Integers
    """Bytes."""
    ones: Integers
    """Microbatches of the second stage that are there, their bytes taken off."""
    nested: Mask
    """Whether there are as many of the first stage at least."""

    def part(self, chosen: Integers) -> "_Filling":
        """Some of the pairs."""
        (first, second), (of_first, of_second) = self.sizes, self.profit
        return _Filling(
            sizes=(first[chosen], second[chosen]), profit=(of_first[chosen], of_second[chosen]),
            free=self.free[chosen], ones=self.ones[chosen], nested=self.nested[chosen],
        )  # fmt: skip

    def at(self, number: Integers, *, most: int) -> Integers:
        """The worth of so many of the first stage, and of what fits beside them; of either `most` at most."""
        (first, second), (of_first, of_second) = self.sizes, self.profit
        beside: Integers = numpy.where(second == 0, most, (self.free - number * first) // numpy.maximum(second, 1))
        most_beside: Integers = numpy.where(self.nested, numpy.minimum(number, most), most)
        beside = numpy.minimum(beside + self.ones, most_beside)
        return number * of_first + beside * of_second

    def rounded_up(self, number: Integers) -> Integers:
        """The same, with what is left of the memory filled by a part of another one."""
        (first, second), (of_first, of_second) = self.sizes, self.profit
        beside = -(-(self.free - number * first) // numpy.maximum(second, 1)) + self.ones
        return number * of_first + beside * of_second


def in_flight(free: Integers, held: Integers, *, count: int) -> Integers:
    """How many microbatches of so many bytes fit at a time: one at least, all at most."""
    fitting = numpy.clip(free // numpy.maximum(held, 1), 1, count)
    return numpy.where(held > 0, fitting, count)


def rounds(count: int, flight: Integers, *, stay: Integers, forward: Integers) -> Integers:
    """From the first F of a stage replica to its last I, with so many microbatches between F and I at a time."""
    rounds: Integers = (count - 1) // flight
    return (rounds + 1) * stay + (count - 1 - rounds * flight) * forward
