"""Branching over subsets of the devices: boxes of counts per class, each with a bound on time and on money."""

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import NamedTuple

from planner.certificate import Bound, make_bound, prove_infeasible
from planner.clock import HasTime
from planner.cost_bound import Box, least_price, money_bound, work_money
from planner.costs import CostModel
from planner.planning.planning_params import SearchParams
from planner.problem import Problem
from planner.rented import Counts, DeviceKinds


class Prospect(NamedTuple):
    """A subset with the least that it may take and cost."""

    counts: Counts
    time_ns: int
    money: int


class Subsets:
    """Boxes that together hold every subset; the quick bounds are derived once per set of devices."""

    def __init__(self, problem: Problem, params: SearchParams) -> None:
        self.kinds, self.params = DeviceKinds(problem=problem), params
        self.deadline_ns = problem.options.deadline_ns
        self._known: dict[Counts, tuple[Bound | str, int]] = {}
        self.boxes = [self._box(self.kinds.fewest, self.kinds.all)]

    def _box(self, fewest: Counts, most: Counts) -> Box:
        time, work = self._look_at(most)
        return Box(fewest=fewest, most=most, time=time, work=work)

    def _look_at(self, most: Counts) -> tuple[Bound | str, int]:
        """The quick bounds of a subset on time and on the money for its work, or why no plan of it fits."""
        if most not in self._known:
            problem = self.kinds.on(most)
            costs = CostModel(problem)
            reason = prove_infeasible(problem, costs)
            time = reason or make_bound(problem, costs, time_limit_s=0.0, params=self.params.bound)
            self._known[most] = time, 0 if reason else work_money(problem)
        return self._known[most]

    def money(self, box: Box) -> int | None:
        """What no plan of the box costs less than; None if none fits by the deadline."""
        return box.money(self.kinds, deadline_ns=self.deadline_ns)

    @property
    def lower_bound(self) -> int | None:
        """What no plan costs less than; None if none fits on any subset."""
        return money_bound(self.kinds, self.boxes, deadline_ns=self.deadline_ns)

    @property
    def num_subsets(self) -> int:
        """Subsets that there are, alike ones counted once."""
        ranges = zip(self.kinds.fewest, self.kinds.all, strict=True)
        return prod(most - fewest + 1 for fewest, most in ranges) - (not any(self.kinds.fewest))

    def least_ns(self, money: int) -> int:
        """No plan that costs at most so much is faster."""
        found = [(self.money(box), box.time_ns) for box in self.boxes]
        return min(time_ns for least, time_ns in found if least is not None and least <= money and time_ns is not None)

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

    def branch_evenly(self, *, has_time: HasTime) -> None:
        """Cut the box whose largest and smallest subset differ most in price."""
        while len(self.boxes) < self.params.subsets.max_boxes and has_time():
            wide = [box for box in self.boxes if not box.is_single and self.money(box) is not None]
            if not wide:
                return
            self._cut(max(wide, key=lambda box: self.kinds.price(box.most) / max(1, self._least_price(box))))

    def _least_price(self, box: Box) -> int:
        return least_price(self.kinds, fewest=box.fewest, most=box.most)

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

    def learn(self, counts: Counts, time: Bound) -> None:
        """A better bound on the makespan of a subset, for all boxes of which it is the largest."""
        known, work = self._known[counts]
        if not isinstance(known, str) and known.value_ns < time.value_ns:
            self._known[counts] = time, work
            self.boxes = [replace(box, time=time) if box.most == counts else box for box in self.boxes]

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

        Of equals the one with fewer devices, whose pipeline is shorter.
        """
        found = []
        for counts, (time, work) in self._known.items():
            if isinstance(time, str) or (self.deadline_ns is not None and time.value_ns > self.deadline_ns):
                continue
            money = max(self.kinds.price(counts) * time.value_ns, work)
            if below is None or money < below:
                found.append(Prospect(counts, time.value_ns, money))
        return sorted(found, key=lambda each: (each.money, sum(each.counts), each.counts))


def _with(counts: Counts, index: int, *, count: int) -> Counts:
    return (*counts[:index], count, *counts[index + 1 :])
