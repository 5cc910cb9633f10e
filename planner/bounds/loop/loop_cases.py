"""How many layers the stages of a loop hold: all cases refuted by playing the fixed order.

A case gives each rank a set of possible numbers of layers per stage. A filling is removed if all layers no longer find
room, or if the order ends after T with all other stages at their least. The end of a fixed order is a longest path, so
longer stages never shorten it. A case without fillings for a rank is closed; other cases split.
"""

from collections.abc import Sequence

import numpy

from planner.bounds.loop.loop_cuts import Fillings, LoopCuts
from planner.bounds.minimum_costs import Integers

_PLAYED_AT_ONCE = 4_096
"""Plays that are done together."""

_STEPS_PER_WAVE, _CASES_PER_WAVE = 2, 256
"""Actions that take about as long as a wave, and cases that do not make it longer."""

_CASES_PER_STEP, _CASES_AT_ONCE = 1_024, 16_384
"""Cases that take about as long as what every action of a play takes once, and ways of a case that are looked at
together."""

NONE_LEFT, ALL_LEFT = -(1 << 40), 1 << 40
"""Less, and more, layers than any rank holds."""


class ActionsLeft:
    """Actions that may be played yet, and what looking at paths may take; a play of many cases counts for several."""

    def __init__(self, left: int, *, for_paths: int | None = None) -> None:
        """`for_paths`: None: as much again."""
        self.left, self.for_paths = left, left if for_paths is None else for_paths

    def take(self, actions: int, *, cases: int) -> bool:
        """Whether so much is still paid for."""
        self.left -= actions * (1 + cases // _CASES_PER_STEP)
        return self.left >= 0

    def take_paths(self, numbers: int) -> bool:
        """Whether so many numbers can be looked at for paths; if not, nothing is taken."""
        price = numbers // _CASES_PER_STEP
        is_paid = price <= self.for_paths
        self.for_paths -= is_paid * price
        return is_paid

    def take_play(self, question: LoopCuts, *, cases: int, before: int = 0) -> bool:
        """Whether a play is still paid for: ranks that act at once make it cheaper than it was once, never dearer.

        `before`: cases that were played with these, and are paid for.
        """
        self.left -= _price(question, before + cases)
        self.left += _price(question, before)
        return self.left >= 0


def _price(question: LoopCuts, cases: int) -> int:
    """Actions that plays of so many cases together count as, of none nothing."""
    actions, order = question.num_actions, question.order
    waves = actions - len(order.steps) + _STEPS_PER_WAVE * len(order.waves)
    whole, rest = divmod(cases, _PLAYED_AT_ONCE)
    return sum(
        times * min(actions * (1 + each // _CASES_PER_STEP), waves * (1 + each // _CASES_PER_WAVE))
        for times, each in ((whole, _PLAYED_AT_ONCE), (1, rest))
        if each
    )


def is_refuted(question: LoopCuts, deadline: int, *, effort: ActionsLeft, fillings: Fillings | None = None) -> bool:
    """Whether no cut into stages ends within the deadline; False also where the effort does not suffice.

    `fillings`: those that may; None: all.

    Proof. The order is fixed, so that when all has ended is a longest path, which no stage shortens by taking longer. A
    case says for every rank which fillings of its stages are left. Every stage has at least the least layers of those.
    A way is crossed out where its layers, with the most that is left to the other ranks, are fewer than all layers, or
    with the least are more; and where the order ends too late with the rank's stages filled that way and all others at
    their least. What is crossed out is in no plan of the case, so this continues until nothing changes. A case with a
    rank to which nothing is left is refuted; another is split by the fillings of one rank; one that has a single way
    for every rank, and ends in time, is not refuted.
    """
    fillings = question.fillings() if fillings is None else fillings
    if fillings is None or not effort.take(sum(map(len, fillings)), cases=0):
        return False
    if not all(fillings):
        return True
    search = _OpenCases(question, fillings, deadline=deadline, effort=effort)
    cases = [numpy.ones(search.num_fillings, dtype=bool)]
    at_once = max(1, _CASES_AT_ONCE // search.num_fillings)
    while cases:
        batch, cases = numpy.array(cases[-at_once:]), cases[:-at_once]
        left = search.cross_out(batch)
        if left is None:
            return False
        for case in left:
            parts = search.split(case)
            if not parts:
                return False
            cases += parts
    return True


class _OpenCases:
    """Cases of a question, each a row that says which fillings of ranks are left; those of a rank stand together."""

    def __init__(
        self,
        question: LoopCuts,
        fillings: Fillings,
        *,
        deadline: int,
        effort: ActionsLeft,
    ) -> None:
        self.question, self.deadline, self.effort = question, deadline, effort
        self.ranks, self.num_fillings = len(fillings), sum(map(len, fillings))
        self.sizes = numpy.array([row for rows in fillings for row in rows], dtype=numpy.int64)
        """[ways, chunks] layers of the rank's stages."""
        self.totals = self.sizes.sum(axis=1)
        self.rank = numpy.repeat(numpy.arange(self.ranks), [len(rows) for rows in fillings])
        self.first = numpy.cumsum([0, *(len(rows) for rows in fillings[:-1])])
        chunks = numpy.arange(self.sizes.shape[1])
        self.stages = self.rank[:, None] + chunks * self.ranks
        """[ways, chunks] which stages these are."""

    def cross_out(self, cases: Integers) -> Integers | None:
        """The cases that are not refuted, without the ways that are in no plan; None where the effort is used up."""
        done, changed = list[Integers](), cases
        times = numpy.full((2, self.question.order.stages, len(cases)), -1, dtype=numpy.int64)
        while len(changed):
            changed, kept = self._count(changed)
            sizes = self._sizes(changed)
            now = self.question.times(*sizes)
            is_new = (now > times[:, :, kept]).any(axis=(0, 1))
            done.append(changed[~is_new])
            changed, times = changed[is_new], now[:, :, is_new]
            if not self._play(changed, [each[is_new] for each in sizes]):
                return None
        return numpy.concatenate(done)

    def _count(self, cases: Integers) -> tuple[Integers, Integers]:
        """Cases without the ways that leave too few or too many layers; only those in which no rank has none left."""
        kept, before = numpy.arange(len(cases)), -1
        while len(cases) and cases.sum() != before:
            before = cases.sum()
            most, least = (
                edge.reduceat(numpy.where(cases, self.totals, none), self.first, axis=1)
                for edge, none in ((numpy.maximum, NONE_LEFT), (numpy.minimum, ALL_LEFT))
            )
            is_open = (most >= 0).all(axis=1)
            cases, kept, most, least = cases[is_open], kept[is_open], most[is_open], least[is_open]
            others = most.sum(axis=1, keepdims=True) - most, least.sum(axis=1, keepdims=True) - least
            high, low = (self.totals + each[:, self.rank] for each in others)
            cases = cases & (high >= self.question.units) & (low <= self.question.units)
        return cases, kept

    def _sizes(self, cases: Integers) -> list[Integers]:
        """[cases, stages] the least layers of every stage, and the most."""
        found = []
        for edge, none in ((numpy.minimum, ALL_LEFT), (numpy.maximum, NONE_LEFT)):
            rows = numpy.empty((len(cases), self.sizes.shape[1], self.ranks), dtype=numpy.int64)
            for chunk, sizes in enumerate(self.sizes.T):
                rows[:, chunk] = edge.reduceat(numpy.where(cases, sizes, none), self.first, axis=1)
            found.append(rows.reshape(len(cases), self.sizes.shape[1] * self.ranks))
        return found

    def _play(self, cases: Integers, sizes: Sequence[Integers]) -> bool:
        """Take out of the cases the ways that end too late; whether the effort sufficed.

        The rank with fewest ways comes first: where none of them is left, those of others need not be looked at.
        """
        counts, played = self._num_left(cases), 0
        first = numpy.arange(self.ranks) == numpy.where(counts > 1, counts, ALL_LEFT).argmin(axis=1)[:, None]
        others = ((counts > 1) | (numpy.arange(self.ranks) == 0)) & ~first
        for ranks in (first, others):
            is_open = (self._num_left(cases) > 0).all(axis=1, keepdims=True)
            owners, fillings = numpy.nonzero(cases & (ranks & is_open)[:, self.rank])
            for begin in range(0, len(owners), _PLAYED_AT_ONCE):
                owner, filling = owners[begin : begin + _PLAYED_AT_ONCE], fillings[begin : begin + _PLAYED_AT_ONCE]
                if not self.effort.take_play(self.question, cases=len(filling), before=played):
                    return False
                played += len(filling)
                self._play_some(cases, owner=owner, filling=filling, sizes=sizes)
        return True

    def _play_some(self, cases: Integers, *, owner: Integers, filling: Integers, sizes: Sequence[Integers]) -> None:
        """Take those of these ways, each of a case, that end too late out of it."""
        limits = [each[owner] for each in sizes]
        for each in limits:
            numpy.put_along_axis(each, self.stages[filling], self.sizes[filling], axis=1)
        is_late = self.question.order.play(self.question.times(*limits), hops=self.question.hops) > self.deadline
        cases[owner[is_late], filling[is_late]] = False

    def _num_left(self, cases: Integers) -> Integers:
        """[cases, ranks] ways that are left."""
        return numpy.add.reduceat(cases, self.first, axis=1, dtype=numpy.int64)

    def split(self, case: Integers) -> list[Integers]:
        """The case once for every way to fill the rank that has fewest of them; nothing where all have one."""
        counts = self._num_left(case[None])[0]
        if (counts <= 1).all():
            return []
        rank = int(numpy.where(counts > 1, counts, ALL_LEFT).argmin())
        parts = []
        for filling in numpy.nonzero(case & (self.rank == rank))[0]:
            part = case & (self.rank != rank)
            part[filling] = True
            parts.append(part)
        return parts
