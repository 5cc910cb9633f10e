"""The packing bound: prices on layers show that the devices cannot hold all stages and be done in time.

It asks whether a plan can reach an objective T, like the pipeline bound, but looks at what a device can hold as a
whole: one stage, or two, with the times before, between and after them. Cases are distinguished in a tree;
docs/proofs/refutations.md proves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy

from planner.bounds.cases import refutation
from planner.bounds.cases.case_tables import WorkCount
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import FULL, DeviceLoads, Mask, OpenStages, parts_down
from planner.bounds.device_packing.feasible_device_loads import list_loads, narrow_loads
from planner.bounds.device_packing.packing_effort import (
    MICROBATCHES,
    PER_ASSIGNMENT,
    PER_CASE,
    PER_STAGE,
    PER_STATE,
    PER_STEP,
    CheckEffort,
)
from planner.bounds.device_packing.reduced_cost_paths import NO_COST, Priced, ReducedCostPaths, slack_mask
from planner.bounds.device_packing.stage_assignments import MAX_STEPS, DeviceAssignment, DeviceAssignments
from planner.bounds.device_packing.transfers_on_paths import PathTurnarounds
from planner.bounds.minimum_costs import Integers, Least, prefix_sums
from planner.clock import HasTime, always, require_time
from planner.errors import refused_certificate
from planner.plan import Stage

PRICE = 1 << 14
"""Largest price in a certificate."""

MAX_KEYS, MAX_REPLICAS, MAX_CASES, MAX_ROUNDS = 64, 8, 255, 4
"""Layers with time on the trunk, replicas, cases of a certificate and rounds of prices per case."""

MAX_ASSIGNMENTS = 1_600
"""Whole plans that the cases of a certificate may leave to the schedule bound."""

_MOST_TREE_WORK, _PER_WORK = 20_000, 20
"""Units of work that the tree of a whole plan may take, and the loads that each counts for."""

MOST_WAITING = 1 << 30
"""Parts of a device's memory that wait, at most, so that 64 bits hold all sums."""

Prices = list[int]
"""One per key, that of idle time, and that of memory x time, which is 0 where it is left out."""


@dataclass(frozen=True, slots=True)
class Split:
    """Two cases: a stage ends at boundary `place` or none (`devices` 0); key `place` on so many devices, or more."""

    place: int
    devices: int

    def allows(self, stages: OpenStages, *, first: bool) -> Mask:
        """The stages that the first or the second case allows."""
        if not self.devices:
            inside = (stages.start < self.place) & (self.place < stages.end)
            touches = (stages.start == self.place) | (stages.end == self.place)
            return ~inside if first else ~touches
        separate = (stages.end <= self.place) | (stages.start > self.place)
        few = stages.used <= self.devices
        return separate | (few if first else ~few)


@dataclass(frozen=True, slots=True)
class PackingCertificate:
    """What shows that nothing is in time: prices, round after round, and then perhaps two cases."""

    prices: tuple[Prices, ...]
    split: Split | None


def applies_to(least: Least) -> bool:
    """Whether the bound holds here, and is not too much work."""
    problem = least.problem
    options = problem.options
    if options.objective != "makespan" or options.max_stages_per_device > 2:
        return False
    if problem.max_replicas > MAX_REPLICAS:
        return False
    boundaries = Boundaries(least)
    return 0 < boundaries.size <= MAX_KEYS and all(boundaries.trunk.returns)


class Packing:
    """One case: stages that are possible until a deadline, narrowed down by prices.

    `loads`: what the devices could hold before a split. Its methods raise InterruptedStepError once `has_time` denies,
    and MuchToCheckError, which is one, before they look at more than is left of `effort`.
    """

    def __init__(
        self,
        boundaries: Boundaries,
        deadline: int,
        *,
        stages: OpenStages | None = None,
        loads: DeviceLoads | None = None,
        has_time: HasTime = always,
        effort: CheckEffort | None = None,
    ) -> None:
        self.boundaries, self.deadline, self.has_time = boundaries, deadline, has_time
        self.effort = CheckEffort(boundaries) if effort is None else effort
        self.stages = OpenStages(boundaries, deadline) if stages is None else stages
        self.unit = 1024 * lcm(*range(1, boundaries.replicas + 1), *boundaries.used)
        kinds = range(len(boundaries.kinds))
        work = numpy.minimum([self.stages.on(kind).work for kind in kinds], deadline)
        self.busy = parts_down(work, deadline, parts=self.unit)
        self.needed = boundaries.beside * self.unit // max(deadline, 1)
        self.loads = self._narrow(loads)

    def part(self, split: Split, *, first: bool) -> "Packing":
        """The first or the second case of a split: what was shown for both holds for either."""
        stages = self.stages.copy()
        stages.is_open &= split.allows(stages, first=first)
        return Packing(
            self.boundaries, self.deadline, stages=stages, loads=self.loads, has_time=self.has_time, effort=self.effort
        )

    def _narrow(self, loads: DeviceLoads | None) -> DeviceLoads:
        """What is left of the loads, or of all that there are."""
        self.effort.take(PER_CASE + PER_STAGE * len(self.stages.start))
        self.stages.tighten()
        self.stages.tighten()
        self.charged = self._charge()
        self.effort.take(self.stages.count_loads() if loads is None else len(loads.first))
        if loads is None:
            return list_loads(self.stages, has_time=self.has_time)
        return narrow_loads(self.stages, loads, has_time=self.has_time)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that a device could hold."""
        return not len(self.loads.first)

    def close(self) -> None:
        """Nothing is possible."""
        self.loads = self.loads.keep(numpy.zeros(len(self.loads.first), dtype=numpy.bool_))

    def _charge(self) -> Integers:
        """[kind, stage]: memory x time of all keys up to the end of a stage during a replica's share of its F and I, at
        the least that F leaves; and what its own keys leave beyond that, while a microbatch stays.
        """
        b, memory = self.boundaries, max(self.boundaries.memory, 1)
        shares = [min(held * FULL // memory, MOST_WAITING) for held in b.held.tolist()]
        waiting = numpy.array(shares, dtype=numpy.int64)[self.stages.end]
        found = []
        for kind in range(len(b.kinds)):
            own = self.stages.on(kind)
            time = b.count * (own.forward + own.returning) // own.used
            parts = parts_down(numpy.minimum(time, self.deadline), self.deadline)
            found.append(parts * waiting // FULL * self.unit // FULL + self._beyond(own))
        return numpy.array(found)

    def _beyond(self, own: OpenStages) -> Integers:
        """Memory x time of a replica's own keys beyond the least that F leaves of them."""
        b = self.boundaries
        least = -((b.held[own.start] - b.held[own.end]) // own.used)
        beyond = parts_down(numpy.clip(own.left - least, 0, b.memory), max(b.memory, 1))
        turnaround = numpy.minimum(own.turnaround, own.turnaround_anywhere)
        stay = numpy.minimum(own.forward + turnaround + own.returning, self.deadline)
        return beyond * parts_down(stay, self.deadline) // FULL * self.unit // FULL * b.count

    def _rates(self, prices: Prices) -> tuple[int, int]:
        """The prices of idle time, and of memory x time."""
        size = self.boundaries.size
        return prices[size], prices[size + 1] if len(prices) > size + 1 else 0

    def values(self, prices: Prices) -> Integers:
        """Per load: the worth of its layers, shared by the replicas, of the time that it leaves for others, and of the
        memory x time that it offers beyond what it makes microbatches further up wait.
        """
        sums, (idle, memory) = prefix_sums(prices[: self.boundaries.size]), self._rates(prices)
        stages, loads = self.stages, self.loads
        profit = (sums[stages.end] - sums[stages.start]) * (self.unit // stages.used) - idle * self.busy
        profit -= memory * self.charged
        second = numpy.where(loads.second >= 0, profit[loads.kind, loads.second], 0)
        room = -(-loads.room.astype(numpy.int64) * self.unit // FULL)
        return profit[loads.kind, loads.first] + second + idle * self.unit + memory * room

    def is_refuted(self, prices: Prices) -> bool:
        """Whether these prices show that the devices are worth too little; if not, what exceeds the slack is closed."""
        self.effort.take(len(self.loads.first))
        values, kinds, (idle, _) = self.values(prices), self.boundaries.kinds, self._rates(prices)
        most = numpy.full(len(kinds), idle * self.unit)
        numpy.maximum.at(most, self.loads.kind, values)
        profit = sum(prices[: self.boundaries.size]) * self.unit + idle * self.needed
        slack = sum(kind.count * value for kind, value in zip(kinds, most.tolist(), strict=True)) - profit
        if slack < 0:
            return True
        missing = most[self.loads.kind] - values
        kept = missing <= slack
        loads, reduced_cost = self.loads.keep(kept), missing[kept]
        priced = Priced(loads=loads, reduced_cost=reduced_cost, slack=slack)
        self.stages.is_open &= slack_mask(self.stages, priced)
        if slack >= NO_COST:
            return False
        paths = ReducedCostPaths(self.stages, priced)
        self.effort.take(PER_CASE + PER_STATE * paths.count_states())
        if not paths.narrow(has_time=self.has_time):
            return True
        PathTurnarounds(self.stages, paths).raise_turnarounds(has_time=self.has_time)
        self.loads = self._narrow(loads)
        return self.is_empty

    def assignments(self, *, most: int, steps: int = MAX_STEPS) -> list[DeviceAssignment] | None:
        """All plans that what is left can be part of; None if there are more than so many."""
        self.effort.take(len(self.loads.first))
        assignments = DeviceAssignments(self.stages, self.loads)
        found = assignments.find(most=most, steps=min(steps, self.effort.left // PER_STEP))
        self.effort.take(PER_STEP * assignments.steps)
        return found

    def is_late(self, assignment: DeviceAssignment) -> bool:
        """Whether the schedule bound shows that such a plan is not done in time."""
        require_time(self.has_time)
        self.effort.take(PER_ASSIGNMENT * (1 + self.boundaries.count // MICROBATCHES))
        return DeviceAssignments(self.stages, self.loads).is_late(assignment)

    def find_tree(self, assignment: DeviceAssignment, given: Sequence[int] | None = None) -> Sequence[int] | None:
        """A tree, maybe a `given` one, that shows that no order of such a plan is in time; None if there is none.

        There is none where layers or microbatches decide what recomputes. ValueError if the given one is none.
        """
        if not self.boundaries.least.problem.options.decides_whole_stages:
            return None
        cases = DeviceAssignments(self.stages, self.loads).order_cases(assignment)
        work = WorkCount(min(self.effort.left // _PER_WORK, _MOST_TREE_WORK), has_time=self.has_time)
        tree = refutation.close_alone(cases, deadline=self.deadline, effort=work, given=given)
        self.effort.take(min(work.spent, work.most) * _PER_WORK)
        return tree

    def write(self, assignment: DeviceAssignment) -> tuple[Stage, ...]:
        """Its stages, by name."""
        return DeviceAssignments(self.stages, self.loads).write(assignment)


class _Counter:
    """Assignments that may still be looked at, and the trees of those that the schedule bound lets pass."""

    def __init__(self, trees: Sequence[Sequence[int]]) -> None:
        self.left, self.trees = MAX_ASSIGNMENTS, iter(trees)

    def _is_late(self, packing: Packing, assignment: DeviceAssignment) -> bool:
        if packing.is_late(assignment):
            return True
        tree = next(self.trees, None)
        return tree is not None and packing.find_tree(assignment, tree) is not None

    def all_late(self, packing: Packing) -> bool:
        """Whether there are few assignments, and none is in time."""
        assignments = packing.assignments(most=self.left)
        if assignments is None:
            return False
        self.left -= len(assignments)
        return all(self._is_late(packing, assignment) for assignment in assignments)


def is_out_of_reach(
    boundaries: Boundaries, deadline: int, *, cases: Sequence[PackingCertificate], trees: Sequence[Sequence[int]] = ()
) -> bool:
    """Whether the cases, in preorder, show that no plan has a makespan of at most `deadline`, optimizer left out.

    `trees`: of whole plans that the schedule bound lets pass, in order.
    MuchToCheckError where they would take more than a check may, ValueError where a tree is none.
    """
    left, counter = iter(cases), _Counter(trees)

    def has_parts(case: PackingCertificate | None) -> bool:
        """Whether all parts follow of a case that needs none: it may have been split when rules were weaker."""
        if case is None or case.split is None:
            return case is not None
        answers = [has_parts(next(left, None)) for _ in range(2)]
        return all(answers)

    def is_refuted(packing: Packing) -> bool:
        case = next(left, None)
        if case is None:
            return False
        if packing.is_empty or any(packing.is_refuted(prices) for prices in case.prices):
            return has_parts(case)
        if case.split is None:
            return counter.all_late(packing)
        answers = [is_refuted(packing.part(case.split, first=first)) for first in (True, False)]
        return all(answers)

    return is_refuted(Packing(boundaries, deadline)) and next(left, None) is None and next(counter.trees, None) is None


def write_cases(cases: Sequence[PackingCertificate]) -> list[list[Any]]:
    """Cases in preorder, as a certificate holds them: the rounds of prices, and place and replicas of the split."""
    return [
        [
            [list(prices) for prices in case.prices],
            [] if case.split is None else [case.split.place, case.split.devices],
        ]
        for case in cases
    ]


def read_cases(plain: object, boundaries: Boundaries) -> list[PackingCertificate]:
    """The cases that a certificate holds; ValueError if they are none, or do not fit the problem."""
    if not isinstance(plain, list) or not 0 < len(plain) <= MAX_CASES:
        raise refused_certificate(f"cases = {str(plain)[:60]!r} is not a list of 1 to {MAX_CASES}")
    return [_read_case(entry, boundaries) for entry in plain]


def _read_case(plain: object, boundaries: Boundaries) -> PackingCertificate:
    if not isinstance(plain, list) or len(plain) != 2 or not all(isinstance(part, list) for part in plain):
        raise refused_certificate(f"the case {str(plain)[:60]!r} is not a pair of lists")
    rounds, split = plain
    lengths = (boundaries.size + 1, boundaries.size + 2)
    if len(rounds) > MAX_ROUNDS or not all(any(_is_numbers(r, [PRICE] * n) for n in lengths) for r in rounds):
        raise refused_certificate(
            f"the prices {str(rounds)[:60]!r} are not lists of {lengths[0]} or {lengths[1]} integers from 0 to {PRICE}"
        )
    if split and not _is_numbers(split, [boundaries.size - 1, boundaries.most]):
        raise refused_certificate(f"the split {str(split)[:60]!r} is none of this problem")
    return PackingCertificate(tuple(rounds), Split(*split) if split else None)


def _is_numbers(plain: object, most: list[int]) -> bool:
    """Whether it is a list of integers from 0 up to these."""
    if not isinstance(plain, list) or len(plain) != len(most):
        return False
    return all(type(number) is int and 0 <= number <= limit for number, limit in zip(plain, most, strict=True))
