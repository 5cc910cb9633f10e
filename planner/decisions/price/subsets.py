"""Branching over subsets of the devices: boxes of counts per class, each with a bound on time and on money."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from planner.batch_problem import Question
from planner.clock import HasTime
from planner.decisions.price.bound import Box, money_bound, work_money
from planner.decisions.price.device_kinds import Counts, DeviceKinds
from planner.evidence.certificate import Bound, least_over_sizes, make_bound, prove_infeasible
from planner.layout.costs import CostModel
from planner.planning.planning_params import SearchParams
from planner.planning.runs.candidate_run import Choice


class Prospect(NamedTuple):
    """A subset with the least that it may take and cost."""

    choice: Choice
    time_ns: int
    money: int


Entries = dict[int | None, Bound | str]
"""Per size of microbatches the bound on the makespan, or why no plan fits; under None where no size is to be chosen."""


class Subsets:
    """Boxes that together hold every subset; the quick bounds are derived once per set of devices."""

    def __init__(self, question: Question, params: SearchParams) -> None:
        self.kinds, self.params = DeviceKinds(problem=question), params
        self.deadline_ns = question.options.deadline_ns
        self._known: dict[Counts, tuple[Entries, dict[int | None, int]]] = {}
        self.boxes = [self._box(self.kinds.fewest, self.kinds.all)]

    def _box(self, fewest: Counts, most: Counts) -> Box:
        self._look_at(most)
        entries, works = self._known[most]
        return Box(fewest=fewest, most=most, time=_least(entries), work=min(works.values()))

    def _look_at(self, most: Counts) -> None:
        """Derive the quick bounds of a subset at every size, on time and on the money for its work."""
        if most not in self._known:
            problems = self.kinds.candidates(most)
            entries: Entries = {}
            for size, problem in problems.items():
                costs = CostModel(problem)
                quick = prove_infeasible(problem, costs)
                entries[size] = quick or make_bound(problem, costs, time_limit_s=0.0, params=self.params.bound)
            self._known[most] = entries, {size: work_money(problem) for size, problem in problems.items()}

    def known(self, counts: Counts) -> Entries:
        """The best bounds so far of a subset that was looked at."""
        return self._known[counts][0]

    def money(self, box: Box) -> int | None:
        """What no plan of the box costs less than; None if none fits by the deadline."""
        return box.money(self.kinds, deadline_ns=self.deadline_ns)

    @property
    def lower_bound(self) -> int | None:
        """What no plan costs less than; None if none fits on any subset."""
        return money_bound(self.kinds, self.boxes, deadline_ns=self.deadline_ns)

    def open(self, below: int | None) -> list[Box]:
        """Boxes that may have a plan that costs less, the most promising first; of equals those with more devices."""
        found = [(self.money(box), box) for box in self.boxes]
        known = [(money, box) for money, box in found if money is not None and (below is None or money < below)]
        return [box for _, box in sorted(known, key=lambda each: (each[0], [-count for count in each[1].most]))]

    def branch(self, *, below: int | None, wanted: int, has_time: HasTime) -> None:
        """Cut the most promising box until so many of the best are single subsets, or there are enough boxes."""
        while len(self.boxes) < self.params.subsets.max_boxes and has_time():
            best = self.open(below)[:wanted]
            box = next((box for box in best if not box.is_single), None)
            if box is None:
                return
            self._cut(box)

    def _cut(self, box: Box) -> None:
        """In the middle of the class that decides most about its price."""
        prices = self.kinds.prices
        ranges = [
            ((high - low) * max(price, 1), index)
            for index, (low, high, price) in enumerate(zip(box.fewest, box.most, prices, strict=True))
            if high > low
        ]
        _, index = max(ranges)
        middle = (box.fewest[index] + box.most[index]) // 2
        parts = [
            (box.fewest, _with(box.most, index, count=middle)),
            (_with(box.fewest, index, count=middle + 1), box.most),
        ]
        self.boxes.remove(box)
        self.boxes += [self._box(fewest, most) for fewest, most in parts if any(most)]

    def learn(self, choice: Choice, time: Bound) -> None:
        """A better bound on the makespan of a subset at a size, for all boxes of which it is the largest."""
        entries = self.known(choice.counts)
        known = entries[choice.size]
        if not isinstance(known, str) and known.value_ns < time.value_ns:
            entries[choice.size] = time
            least = _least(entries)
            self.boxes = [replace(box, time=least) if box.most == choice.counts else box for box in self.boxes]

    def propose(self, *, has_time: HasTime) -> None:
        """Look at subsets that are likely: whole classes one after the other, those first whose work costs least."""
        numbers = range(len(self.kinds.members))
        by_type: dict[tuple[str, int], list[int]] = {}
        for index in numbers:
            by_type.setdefault(self._type_of(index), []).append(index)
        least = {key: work_money(self.kinds.on(self._chosen(chosen))) for key, chosen in by_type.items() if has_time()}
        ranked = sorted(least, key=lambda key: least[key])
        for order in ([index for key in ranked for index in by_type[key]], *(by_type[key] for key in ranked)):
            for length in range(1, len(order) + 1):
                if not has_time():
                    return
                self._look_at(self._chosen(order[:length]))

    def _type_of(self, index: int) -> tuple[str, int]:
        """What decides about the work of a class, and its price."""
        return self.kinds.problem.cluster.by_name[self.kinds.members[index][0]].type, self.kinds.prices[index]

    def _chosen(self, classes: Iterable[int]) -> Counts:
        """All devices of some classes, and those that every plan uses."""
        taken = set(classes)
        pairs = zip(self.kinds.fewest, self.kinds.all, strict=True)
        return tuple(most if index in taken else fewest for index, (fewest, most) in enumerate(pairs))

    def prospects(self, below: int | None) -> list[Prospect]:
        """Subsets looked at that may have a plan that costs less, in time, with all their devices; the cheapest first.

        Of equals the one with fewer devices, whose pipeline is shorter; then the smaller size.
        """
        found = []
        for counts, (entries, works) in self._known.items():
            price = self.kinds.price(counts)
            for size, time in entries.items():
                if isinstance(time, str) or (self.deadline_ns is not None and time.value_ns > self.deadline_ns):
                    continue
                money = max(price * time.value_ns, works[size])
                if below is None or money < below:
                    found.append(Prospect(Choice(counts, size), time.value_ns, money))
        return sorted(found, key=lambda each: (each.money, sum(each.choice.counts), each.choice))


def _least(entries: Entries) -> Bound | str:
    """The bound of a subset over all sizes of microbatches, or why no plan fits at any."""
    if (alone := entries.get(None)) is not None:
        return alone
    of_sizes = {size: entry for size, entry in entries.items() if size is not None}
    if any(isinstance(entry, Bound) for entry in of_sizes.values()):
        return least_over_sizes(of_sizes)
    return "; ".join(dict.fromkeys(str(reason) for reason in of_sizes.values()))


def _with(counts: Counts, index: int, *, count: int) -> Counts:
    return (*counts[:index], count, *counts[index + 1 :])
