"""Looks for prices and cases that make the packing bound large; whatever it finds is checked by `packing` alone."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy
from numpy.typing import NDArray

from planner.bounds.bisection import REFUTED_NS, next_above
from planner.bounds.bound_params import BoundParams
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import FULL, OpenStages
from planner.bounds.device_packing.packing_bound import (
    MAX_ASSIGNMENTS,
    MAX_CASES,
    MAX_ROUNDS,
    PRICE,
    Packing,
    PackingCertificate,
    Prices,
    Split,
)
from planner.bounds.device_packing.packing_effort import (
    MICROBATCHES,
    PER_ASSIGNMENT,
    CheckEffort,
    MuchToCheckError,
    most_effort,
)
from planner.bounds.device_packing.stage_assignments import MAX_STEPS, DeviceAssignment
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, InterruptedStepError, always
from planner.plan import Stage

_PACKING_COLUMNS = 40
"""Columns per round, at most."""
_PACKING_ROUNDS = 60
"""Rounds of column generation of one relaxation, at most."""
_PACKING_ENOUGH = 0.9
"""Another round of prices is worth its while if the last one left fewer stages than this part."""
_PACKING_STEPS = 16
"""Deadlines that are tried for the packing bound."""

WIDE_PART, WIDE_EFFORT = 10, 3
"""Where a known plan lies above the other bounds by more than one part in so many, there is so much more effort."""

Floats = NDArray[numpy.float64]

_EFFORT_PER_STAGE = 200
"""Loads of devices that a stage counts for."""

_DEADLINE_PARTS = 3, 4
"""The part of the effort left that a deadline may take."""

SLOW_AFTER, SLOW_PART = 0.5, 0.25
"""A deadline is given up once more than the first part of its effort is spent, if the part of the cases that is closed
(every split counts half) is less than so much of the part that is spent."""

FEW_ASSIGNMENTS, FEW_STEPS = 12, 400
"""Whole plans that are looked at, and steps until they are known, where a case could as well be split."""

WANTED = 4
"""Whole plans that the schedule bound lets pass for a deadline until it is given up, where the bound is raised further.
"""

_PAIRS_PER_LOAD = 2
"""Of so many pairs of stages about one is a load."""

_FAR_FROM_START = 64
"""Deadlines so many times that of the start are not tried where no plan is known."""

_PARTS, _PRECISE, _FINEST = 8, 200, 1600
"""Where the bound is raised further: the part of the effort that a deadline has at first, and the parts of the bound
that two are apart at least, to begin with and in the end.
"""

_PAIRS_OF_ROOT = 8
"""Where the effort is less than so many times the pairs of stages, a first case takes most of it: short strides."""


class Covering(Protocol):
    """A linear programme that covers rows by columns; solver_models has one."""

    def add(self, rows: list[int], parts: list[float], *, cost: float = 1.0) -> None:
        """A column that covers so much of these rows."""

    def solve(self) -> tuple[Floats, Floats]:
        """Prices of the rows, and how much of every column is taken."""


MakeCovering = Callable[[Iterable[float]], Covering]


@dataclass
class _Relaxation:
    """The fractional packing of one case: how many devices the layers need, and where it is undecided."""

    packing: Packing
    covering: Covering
    has_time: HasTime = always
    columns: list[int] = field(default_factory=list)
    """Number of the load that is a column; before them is one that offers all devices."""
    known: set[int] = field(default_factory=set)
    """The same, in no order."""

    def solve(self) -> tuple[Prices, Floats]:
        """Prices in whole numbers, and how much of every load is taken, if as few devices of each kind as can be do."""
        first, kinds = self.packing.boundaries.size + 2, self.packing.boundaries.kinds
        self.covering.add(
            [first + number for number in range(len(kinds))],
            [float(kind.count) for kind in kinds],
            cost=float(self.packing.boundaries.num_devices),
        )
        self._add(numpy.flatnonzero(self.packing.loads.second < 0)[:_PACKING_COLUMNS])
        for _ in range(_PACKING_ROUNDS):
            duals, taken = self.covering.solve()
            of_keys, of_kinds = duals[:first], duals[first:]
            prices = _whole(of_keys)
            values = self.packing.values(prices) / (self.packing.unit * _scale(of_keys))
            values -= of_kinds[self.packing.loads.kind]
            worthy = numpy.flatnonzero(values > 1e-4)
            best = self._varied(_largest(values, worthy, most=8 * _PACKING_COLUMNS))
            if not len(best) or not self.has_time():
                break
            self._add(best)
        return prices, taken[1:]

    def _varied(self, best: Integers) -> Integers:
        """Some of them that are no columns yet, no stage more often than thrice."""
        loads = self.packing.loads
        used: dict[int, int] = {}
        chosen = []
        for load in best.tolist():
            stages = (int(loads.first[load]), -1 - int(loads.second[load]))
            if load not in self.known and all(used.get(stage, 0) < 3 for stage in stages if stage):
                chosen.append(load)
                used.update({stage: used.get(stage, 0) + 1 for stage in stages})
        return numpy.array(chosen[:_PACKING_COLUMNS], dtype=numpy.int64)

    def _add(self, chosen: Integers) -> None:
        packing = self.packing
        stages, size = packing.stages, packing.boundaries.size
        for load in chosen.tolist():
            kind = int(packing.loads.kind[load])
            room = int(packing.loads.room[load]) / FULL
            parts: dict[int, float] = {size: 1.0, size + 1: room, size + 2 + kind: -1.0}
            for stage in (int(packing.loads.first[load]), int(packing.loads.second[load])):
                if stage >= 0:
                    for key in range(int(stages.start[stage]), int(stages.end[stage])):
                        parts[key] = 1 / int(stages.used[stage])
                    parts[size] -= int(packing.busy[kind, stage]) / packing.unit
                    parts[size + 1] -= int(packing.charged[kind, stage]) / packing.unit
            self.covering.add(list(parts), list(parts.values()), cost=0.0)
            self.columns.append(load)
            self.known.add(load)

    def split(self, taken: Floats) -> Split | None:
        """The question that the fractional packing leaves most open."""
        stages, loads = self.packing.stages, self.packing.loads
        size, most = self.packing.boundaries.size, self.packing.boundaries.most
        cut, held = numpy.zeros(size + 1), numpy.zeros((size, most + 1))
        for load, part in zip(self.columns[: len(taken)], taken.tolist(), strict=True):
            for stage in (int(loads.first[load]), int(loads.second[load])):
                if part > 0 and stage >= 0:
                    start, end, r = (int(column[stage]) for column in (stages.start, stages.end, stages.used))
                    cut[start] += part / r
                    held[start:end, r] += part / r
        open_cuts = [(min(cut[place], 1 - cut[place]) * 0.9, Split(place, 0)) for place in range(1, size)]
        few = numpy.cumsum(held, axis=1)
        open_keys = [
            (min(few[key, r], few[key, most] - few[key, r]), Split(key, r))
            for key in range(size)
            for r in range(1, most)
        ]
        best = max([*open_cuts, *open_keys], key=lambda pair: float(pair[0]), default=(0.0, None))
        return best[1] if best[0] > 1e-6 else self._undecided(cut)

    def _undecided(self, cut: Floats) -> Split | None:
        """What a packing of whole devices has and not all open stages have: a boundary, or a key's replicas."""
        stages = self.packing.stages
        size = self.packing.boundaries.size
        chosen = stages.is_open
        for place in sorted(range(1, size), key=lambda place: abs(2 * place - size)):
            if (chosen & (stages.start < place) & (place < stages.end)).any() and cut[place] > 0.5:
                return Split(place, 0)
        for place in range(1, size):
            touches = chosen & (stages.start == place)
            if touches.any() and (chosen & (stages.start < place) & (place < stages.end)).any():
                return Split(place, 0)
        for key in range(size):
            r = stages.used[chosen & (stages.start <= key) & (key < stages.end)]
            if len(r) and r.min() < r.max():
                return Split(key, int(r.min()))
        return None


def _largest(values: Floats, chosen: Integers, *, most: int) -> Integers:
    """At most so many of the chosen with the largest values, the largest first."""
    if len(chosen) > most:
        chosen = chosen[numpy.argpartition(-values[chosen], most)[:most]]
    return chosen[numpy.argsort(-values[chosen], kind="stable")]


def _scale(duals: Floats) -> float:
    return PRICE / max(float(duals.max(initial=0.0)), 1e-9)


def _whole(duals: Floats) -> Prices:
    prices: list[int] = numpy.clip(numpy.rint(duals * _scale(duals)), 0, PRICE).astype(int).tolist()
    return prices


class Refutation:
    """Tries to show that a deadline cannot be met, in so many cases and with about so much effort at most.

    It ends as soon as the schedule bound lets `wanted` whole plans pass: no further case helps against them. Where all
    is closed but for fewer, trees over their orders are tried at the end, if it is made `with_trees`. Where the effort
    will not do it is paused, and can continue with more.
    """

    def __init__(
        self,
        boundaries: Boundaries,
        make: MakeCovering,
        *,
        most: int,
        effort: int,
        wanted: int = 1,
        with_trees: bool = False,
        has_time: HasTime = always,
    ) -> None:
        self.boundaries, self.make, self.most, self.effort = boundaries, make, most, effort
        self.wanted, self.with_trees, self.has_time = wanted, with_trees, has_time
        self.budget, self.closed = max(effort, 1), 0.0
        """All effort, and the part of the cases that is closed, every split counting half."""
        self.cases: list[PackingCertificate] = []
        """Visited cases, in preorder."""
        self.found: list[PackingCertificate] | None = None
        """The same, if all are closed."""
        self.assignments = MAX_ASSIGNMENTS
        """Whole plans that may still be left to the schedule bound."""
        self.num_passed = 0
        """How many of them the schedule bound lets pass."""
        self.timely: list[tuple[Stage, ...]] = []
        """The stages of those, if they are all layers."""
        self.passed: list[tuple[Packing, DeviceAssignment]] = []
        """The same, with the cases that they are in."""
        self.trees: list[Sequence[int]] = []
        """Of those, in order, which show that they are late nonetheless."""
        self.is_too_large = False
        """Whether a check of the cases would take more than it may."""
        self.is_begun = False
        """Whether a check may rate the loads of the first case, and there was time to list them."""
        self.is_paused = False
        """Whether more effort may close what is open."""

    @property
    def is_hopeless(self) -> bool:
        """Whether so many plans were let pass that it ends."""
        return self.num_passed >= self.wanted

    def find(self, deadline: int) -> list[PackingCertificate] | None:
        """The cases in preorder, or None, also if time was over in between."""
        for _ in self.steps(deadline):
            pass
        return self.found

    def steps(self, deadline: int) -> Iterator[None]:
        """The same, case by case; at the end they are in `found`."""
        self.cases, self.assignments, self.num_passed, self.closed = [], MAX_ASSIGNMENTS, 0, 0.0
        self.found, self.timely, self.passed, self.trees = None, [], [], []
        self.left = self._close(deadline)
        return self._until_paused()

    def go_on(self) -> Iterator[None]:
        """The next steps of one that is paused, with as much effort again as it had in all."""
        self.effort, self.budget = self.effort + self.budget, 2 * self.budget
        return self._until_paused()

    def _until_paused(self) -> Iterator[None]:
        self.is_paused = False
        for _ in self.left:
            if self.is_paused:
                return
            yield

    def _close(self, deadline: int) -> Iterator[None]:
        """All steps, with one wherever it is paused."""
        try:
            root = Packing(self.boundaries, deadline, has_time=self.has_time, effort=CheckEffort(self.boundaries))
            root.effort.require(len(root.loads.first))
            self.is_begun = True
            is_closed = (yield from self._refute(root)) and (yield from self._grow_trees())
            self.found = self.cases if is_closed else None
        except MuchToCheckError:
            self.is_too_large = True
        except InterruptedStepError:
            return

    def _is_slow(self) -> bool:
        """Whether the effort will not do, by what it has closed so far."""
        spent = 1 - self.effort / self.budget
        return spent >= 1 or (spent > SLOW_AFTER and self.closed < SLOW_PART * spent)

    def _refute(self, packing: Packing, *, weight: float = 1.0) -> Generator[None, None, bool]:
        needed = len(packing.loads.first) + _EFFORT_PER_STAGE * int(packing.stages.is_open.sum())
        while self._is_slow() or needed > 2 * self.budget:
            self.is_paused = True
            yield
        if self.is_hopeless or len(self.cases) >= self.most or not self.has_time():
            return False
        place = len(self.cases)
        self.cases.append(PackingCertificate((), None))
        rounds, split = self._price(packing)
        is_late = packing.is_empty or self._is_late(packing, is_last=split is None)
        self.cases[place] = PackingCertificate(tuple(rounds), split if is_late is None else None)
        if is_late is not None or split is None:
            self.closed += weight if is_late is not None else 0.0
            return bool(is_late)
        yield
        answers = list[bool]()
        for first in (True, False):
            answers.append((yield from self._refute(packing.part(split, first=first), weight=weight / 2)))
            if not answers[-1] and (not self.num_passed or self.is_hopeless):
                break
        return all(answers)

    def _is_late(self, packing: Packing, *, is_last: bool) -> bool | None:
        """Whether all whole plans left are late by the schedule bound, or trees are left to say so; None if they are
        too many (few may be left, or many where no split is). Further splits would only find those let pass again.
        """
        most, steps = (self.assignments, MAX_STEPS) if is_last else (min(self.assignments, FEW_ASSIGNMENTS), FEW_STEPS)
        assignments = packing.assignments(most=most, steps=steps)
        if assignments is None:
            return None
        self.assignments -= len(assignments)
        self.effort -= PER_ASSIGNMENT * len(assignments) * (1 + self.boundaries.count // MICROBATCHES)
        passed = islice((each for each in assignments if not packing.is_late(each)), self.wanted - self.num_passed)
        timely = list(passed)
        self.num_passed += len(timely)
        self.passed += [(packing, each) for each in timely]
        if self.boundaries.trunk.is_everything:
            self.timely += [packing.write(each) for each in timely]
        return self.with_trees or not timely

    def _grow_trees(self) -> Generator[None, None, bool]:
        """Whether trees show of all plans that were let pass, if they are few, that no order of theirs is in time."""
        for packing, assignment in self.passed:
            if self.is_hopeless:
                return False
            yield  # whoever tries such stages as a plan need not wait for a tree
            before = packing.effort.left
            tree = packing.find_tree(assignment)
            self.effort -= before - packing.effort.left
            if tree is None:
                return False
            self.trees.append(tree)
        return True

    def _price(self, packing: Packing) -> tuple[list[Prices], Split | None]:
        """Rounds of prices, in scarce memory the first of memory alone, and what to split by if they do not do."""
        rounds: list[Prices] = []
        split = None
        if len(self.cases) == 1 and self.boundaries.is_scarce and not packing.is_empty:
            self.effort -= len(packing.loads.first)
            rounds.append([0] * (self.boundaries.size + 1) + [PRICE])
            if packing.is_refuted(rounds[0]):
                packing.close()
        while not packing.is_empty and len(rounds) < MAX_ROUNDS and (not rounds or self.has_time()):
            before = int(packing.stages.is_open.sum())
            self.effort -= len(packing.loads.first) + _EFFORT_PER_STAGE * before
            needs = [1.0] * self.boundaries.size + [packing.needed / packing.unit, 0.0]
            needs += [0.0] * len(self.boundaries.kinds)
            relaxation = _Relaxation(packing, self.make(needs), self.has_time)
            prices, taken = relaxation.solve()
            split = relaxation.split(taken)
            rounds.append(prices)
            if packing.is_refuted(prices):
                packing.close()
                break
            if packing.stages.is_open.sum() > _PACKING_ENOUGH * before:
                break
        return rounds, None if packing.is_empty else split


@dataclass(frozen=True, slots=True)
class Packed:
    """What a search for a bound has found."""

    value: int
    """No plan is below it, optimizer left out."""
    cases: list[PackingCertificate]
    """Which show that; none if there is nothing new."""
    timely: list[tuple[Stage, ...]]
    """Stages that a plan not far above could have."""
    trees: Sequence[Sequence[int]] = ()
    """Of whole plans, which show that with the cases."""


def raise_packing_bound(
    boundaries: Boundaries,
    start: int,
    *,
    make: MakeCovering,
    effort: int,
    has_time: HasTime = always,
    reached: int | None = None,
) -> Packed:
    """The largest T + 1 found out of reach, above `start`, with its cases; else `start` and none.

    It goes a quarter of the way that is left to what a plan has `reached`, optimizer left out, or doubles strides; then
    it halves. The work is counted, not timed. Nothing is begun that would take much more than the effort to list, nor
    without time.
    """
    pairs = OpenStages(boundaries, start).count_pairs() * len(boundaries.kinds)
    if pairs > min(_PAIRS_PER_LOAD * effort, most_effort(boundaries)):
        return Packed(start, [], [])
    is_small = _PAIRS_OF_ROOT * pairs <= effort
    if is_small and reached is not None and WIDE_PART * (reached - start) > reached:
        effort *= WIDE_EFFORT
    low, high = start - 1, reached if is_small else None
    known, stride, precise = high, max(low // 64, 1), max(start // _PRECISE, 1)
    found, timely = list[PackingCertificate](), list[tuple[Stage, ...]]()
    for _ in range(_PACKING_STEPS):
        if known is not None:
            stride = max(low // 64, (known - low) // 4, 1)
        middle = next_above(low, stride)
        if high is not None:
            middle = min(middle, (low + high) // 2)
        is_done = middle == low or (high is not None and high - low <= precise)
        if effort <= 0 or not has_time() or is_done:
            break
        most = effort * _DEADLINE_PARTS[0] // _DEADLINE_PARTS[1]
        refutation = Refutation(boundaries, make, most=MAX_CASES, effort=most, has_time=has_time)
        cases = refutation.find(middle)
        effort -= most - refutation.effort
        if cases is not None:
            low, found, stride = middle, cases, 2 * stride
            continue
        high, timely = middle, refutation.timely + timely
        if not refutation.is_begun:
            break  # somewhat sooner there are about as many loads
    return Packed(low + 1, found, timely)


def raise_further(
    boundaries: Boundaries,
    start: int,
    *,
    make: MakeCovering,
    reached: Callable[[], int | None],
    shown: int = 0,
    has_time: HasTime = always,
    params: BoundParams = BoundParams(),
) -> Iterator[Packed]:
    """What is found with a part of the effort of `max_s` for every deadline, then with ever more for the earliest.

    An item after every case, and before every tree; `shown`: a bound that is known already. Each deadline is a quarter
    of the way to what a plan has `reached` (as for `raise_packing_bound`, asked before each), or to one that is paused
    or given up. Where no two are far enough apart, the earliest that is paused continues, and once none is, they may be
    closer. What whole plans pass for, of which it looks for as many as `WANTED`, is given up for good, since no effort
    refutes it, and so is that whose first case takes too much of the effort, or whose cases nobody would check.
    It ends where none is left, and, as long as no plan is known, `_FAR_FROM_START` times above where it
    began: there may be none.
    """
    effort = int(params.max_s * params.packing_per_s)
    low, precise = max(start, shown) - 1, max(start // _PRECISE, 1)
    passed, paused = list[int](), dict[int, Refutation]()
    while has_time():
        known = reached()
        ahead = min(2 * low + 2, _FAR_FROM_START * start, max(REFUTED_NS, start)) if known is None else known
        high = min([*passed, ahead])
        paused = {deadline: each for deadline, each in paused.items() if low < deadline < high}
        middle = min([*paused, high])
        if middle - low > precise:
            middle = low + max((middle - low) // 4, precise)
            pairs = OpenStages(boundaries, middle).count_pairs() * len(boundaries.kinds)
            if _PAIRS_OF_ROOT * pairs > effort:
                passed.append(middle)
                continue
            part = max(effort // _PARTS, 1)
            refutation = Refutation(
                boundaries, make, most=MAX_CASES, effort=part, wanted=WANTED, with_trees=True, has_time=has_time
            )
            steps = refutation.steps(middle)
        elif paused:
            refutation = paused.pop(middle)
            steps = refutation.go_on()
        elif precise > max(start // _FINEST, 1):
            precise = max(precise // 2, 1)
            continue
        else:
            return
        for _ in steps:
            yield Packed(low + 1, [], refutation.timely)
        if refutation.found is not None:
            low = middle
        elif not refutation.is_begun:
            return
        elif refutation.is_paused:
            paused[middle] = refutation
        else:
            passed.append(middle)
        yield Packed(low + 1, refutation.found or [], refutation.timely, refutation.trees)
