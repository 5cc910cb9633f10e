"""How memory makes the F, I and W of one stage replica take turns: the work that must lie between two of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy

from planner.bounds.minimum_costs import Integers

NEVER = -(1 << 60)
"""Before every time that matters."""

MAX_TABLE = 600
"""Most microbatches for which W are counted and every pair of ranks is looked at; beyond, only steady rounds are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What takes turns on a stage replica, and the memory that makes it."""

    count: int
    """Microbatches."""
    forward: int
    """F."""
    returning: int
    """I, with that of other stage replicas on the device that must come first."""
    rest: int
    """W."""
    in_flight: int
    """F that may have started without their I having ended."""
    held: int
    """Bytes of a microbatch between F and I."""
    kept: int
    """Bytes of a microbatch between I and W."""
    budget: int
    """Bytes for both."""


class MemoryRounds:
    """Least work between the j-th and the k-th event of a stage replica, as a function of n = k - j.

    By the start of the k-th F, a of I and b of W have ended, with (k + 1 - a) x held + (a - b) x kept within the budget
    and a <= k. By the j-th start of an F or an I, at most j of I and of W have. So between them lie at least as many as
    the same inequality asks for with n in place of k.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self.rank: Integers = numpy.arange(costs.count, dtype=numpy.int64)
        self.has_table = costs.count <= MAX_TABLE

    @cached_property
    def forced(self) -> Integers:
        """Per n: the least work of I and W before the n-th F."""
        costs = self.costs
        least = numpy.maximum(self.rank + 1 - costs.in_flight, 0)
        if costs.rest == 0 or costs.kept == 0 or not self.has_table:
            return least * costs.returning
        returned, rank = self.rank[None, :], self.rank[:, None]
        excess = (rank + 1 - returned) * costs.held + returned * costs.kept - costs.budget
        finished = numpy.clip(-(-excess // costs.kept), 0, returned)
        work = returned * costs.returning + finished * costs.rest
        allowed = (returned >= least[:, None]) & (returned <= rank)
        forced: Integers = numpy.where(allowed, work, -NEVER).min(axis=1)
        return forced

    @cached_property
    def to_forward(self) -> Integers:
        """Per n: from the j-th start of an F to the end of the k-th."""
        return (self.rank + 1) * self.costs.forward + self.forced

    @cached_property
    def return_to_forward(self) -> Integers:
        """Per n: from when the j-th I may start to the end of the k-th F, if that F has to wait for that I at all."""
        new = (self.rank + 1 - self.costs.in_flight) * self.costs.forward
        return numpy.where(self.rank >= self.costs.in_flight, new + self.forced, NEVER)

    @cached_property
    def to_return(self) -> Integers:
        """Per n: from the j-th start of an F to the end of the k-th I."""
        both: Integers = (self.rank + 1) * (self.costs.forward + self.costs.returning)
        return both + self._finished

    @cached_property
    def return_to_return(self) -> Integers:
        """Per n: from when the j-th I may start to the end of the k-th."""
        new = numpy.maximum(self.rank + 1 - self.costs.in_flight, 0) * self.costs.forward
        returns: Integers = (self.rank + 1) * self.costs.returning + new
        return returns + self._finished

    @cached_property
    def _finished(self) -> Integers:
        """Per n: the least work of W before the n-th F, however many I there were."""
        costs = self.costs
        if costs.rest == 0 or costs.kept == 0 or costs.held < costs.kept:
            return numpy.zeros(costs.count, dtype=numpy.int64)
        excess = costs.held + self.rank * costs.kept - costs.budget
        finished: Integers = numpy.maximum(-(-excess // costs.kept), 0) * (self.rank >= costs.in_flight)
        return finished * costs.rest

    def after(self, starts: Integers, work: Integers) -> Integers:
        """Per k: the largest of starts[j] + work[k - j] over j <= k; for many microbatches, over far j only."""
        if self.has_table:
            table = self._later + work[self._distance]
            latest: Integers = (starts[:, None] + table).max(axis=0)
            return latest
        both = self.costs.forward + self.costs.returning
        bends = numpy.nonzero(numpy.diff(work) != both)[0]
        first = int(bends[-1]) + 1 if len(bends) else 0
        steady = numpy.full(len(starts), NEVER, dtype=numpy.int64)
        slope = numpy.maximum.accumulate(starts - self.rank * both)[: len(starts) - first]
        steady[first:] = slope + int(work[first]) + self.rank[: len(starts) - first] * both
        return steady

    @cached_property
    def _distance(self) -> Integers:
        distance: Integers = numpy.maximum(self.rank[None, :] - self.rank[:, None], 0)
        return distance

    @cached_property
    def _later(self) -> Integers:
        return numpy.where(self.rank[None, :] >= self.rank[:, None], 0, NEVER)
