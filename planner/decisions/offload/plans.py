"""Plans that keep within memory by offload, made from device orders that do not.

A device runs through its order with what it has room for. Where an action does not fit, the stash that leaves is the
one that is needed last, or the oldest, whichever the rule says. A stash is asked for as early as there is room, or as
late as its transfer before its I or B allows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from planner.actions import Action, Offload
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import StageReplica, lay_out, memory_steps
from planner.plan import Plan, Stage
from planner.problem import Problem

Key = tuple[int, int]
"""Stage and microbatch."""


class OffloadRule(NamedTuple):
    """How stashes are chosen and asked for."""

    oldest_first: bool
    """Whether the oldest one leaves, not the one that is needed last."""
    weights_first: bool
    """Whether a W that frees memory comes before its place in the order, rather than that a stash leaves."""
    lead: int | None
    """Actions before its I or B at which a stash is asked for at the earliest; None: as soon as there is room."""


RULES = tuple(OffloadRule(*each) for each in product((False, True), (False, True), (None, 2, 4)))


@dataclass(slots=True, kw_only=True)
class _Order:
    """The actions of devices that run one order, and what the fullest of them holds."""

    actions: tuple[Action, ...]
    replica_of: dict[int, StageReplica]
    """By stage, that of the first device."""
    room: int
    """Beside what is resident, on the device with the least."""
    own: set[int]
    """Stages whose devices all run this order."""
    is_linked: bool
    """Whether the devices have host links."""
    places: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Of F and of I or B."""

    def __post_init__(self) -> None:
        made = {(each.stage, each.microbatch): at for at, each in enumerate(self.actions) if each.kind == "F"}
        ends = {(each.stage, each.microbatch): at for at, each in enumerate(self.actions) if each.kind in "IB"}
        self.places = {key: (at, ends[key]) for key, at in made.items() if key in ends}


def offloading_plan(problem: Problem, plan: Plan, *, costs: CostModel, rule: OffloadRule) -> Plan | None:
    """The plan with stashes on hosts as its orders need; None if that does not make them fit.

    What stages recompute, they recompute.
    """
    bare = replace(plan, stages=tuple(replace(each, offload=()) for each in plan.stages), evidence=None)
    found: dict[int, list[Offload]] = {}
    schedule = dict(plan.schedule)
    for names, order in _orders(problem, bare, costs=costs):
        filled = _FittingOrder(order, bare.stages, rule=rule).fill()
        if filled is None:
            return None
        schedule |= dict.fromkeys(names, tuple(filled.done))
        for (stage, microbatch), (freed, fetched) in filled.moved().items():
            freed_before, fetched_before = filled.done[freed], filled.done[fetched]
            offload = Offload(microbatch=microbatch, freed_before=freed_before, fetched_before=fetched_before)
            found.setdefault(stage, []).append(offload)
    stages = (
        replace(stage, offload=tuple(sorted(found.get(number, ()), key=lambda each: each.microbatch)))
        for number, stage in enumerate(bare.stages)
    )
    return replace(bare, stages=tuple(stages), schedule=schedule)


def _orders(problem: Problem, plan: Plan, *, costs: CostModel) -> Iterator[tuple[list[str], _Order]]:
    """Each order once, with the devices that run it."""
    laid_out, devices = lay_out(plan, costs=costs), problem.cluster.by_name
    alike: dict[tuple[Action, ...], list[str]] = {}
    for device, order in plan.schedule.items():
        alike.setdefault(order, []).append(device)
    for order, names in alike.items():
        held = [stage for (device, stage) in laid_out.by_place if device == names[0]]
        on = {number: {name for group in plan.stages[number].replicas for name in group} for number in held}
        yield (
            names,
            _Order(
                actions=order,
                replica_of={number: laid_out.by_place[names[0], number] for number in held},
                room=min(devices[name].usable_bytes - laid_out.static_bytes[name] for name in names),
                own={number for number in held if on[number] <= set(names)},
                is_linked=all(devices[name].host_link for name in names),
            ),
        )


class _FittingOrder:
    """The order of a device as far as it has come, and what is held."""

    def __init__(self, order: _Order, stages: Sequence[Stage], *, rule: OffloadRule) -> None:
        self.order, self.stages, self.rule = order, stages, rule
        self.done = list[Action]()
        self.free = list[int]()
        """Bytes that each of them leaves free while it runs."""
        self.level = 0
        self.here, self.away = set[Key](), dict[Key, int]()
        """Stashes that may leave; and those that have left, with the place that they are freed for."""
        self.waiting: dict[Key, Action] = {}
        """Every W that could run."""

    def fill(self) -> "_FittingOrder | None":
        """Run all actions; None if one does not fit."""
        early = set[Action]()
        for action in self.order.actions:
            if action in early:
                continue
            key = action.stage, action.microbatch
            self.waiting.pop(key, None)
            back = 0
            if action.kind in "IB":
                self.here.discard(key)
                back = self._size(key) if key in self.away else 0
            while self.level + back + self._steps(action)[0] > self.order.room:
                weight, leaving = self._next_weight(), self._choose()
                if weight is not None and (leaving is None or self.rule.weights_first):
                    early.add(self.waiting.pop((weight.stage, weight.microbatch)))
                    self._run(weight)
                elif leaving is not None:
                    self.here.remove(leaving)
                    self.away[leaving] = len(self.done)
                    self.level -= self._size(leaving)
                else:
                    return None
            self.level += back
            self._run(action)
        return self

    def _next_weight(self) -> Action | None:
        """The next W that could run, and has room."""
        weight = next(iter(self.waiting.values()), None)
        return weight if weight is not None and self.level + self._steps(weight)[0] <= self.order.room else None

    def _run(self, action: Action) -> None:
        key, (during, after) = (action.stage, action.microbatch), self._steps(action)
        self.free.append(self.order.room - self.level - during)
        self.done.append(action)
        self.level += after
        if action.kind == "F" and self._may_leave(key):
            self.here.add(key)
        if action.kind == "I" and action.stage in self.order.own and self._has_weight_grad(action):
            self.waiting[key] = action._replace(kind="W")

    def _has_weight_grad(self, action: Action) -> bool:
        return self.order.replica_of[action.stage].cost.has_weight_grad

    def _may_leave(self, key: Key) -> bool:
        stage, microbatch = key
        is_kept = not self.stages[stage].recomputes(microbatch) and not self.stages[stage].is_split
        is_known = stage in self.order.own and key in self.order.places
        return self.order.is_linked and is_known and is_kept and self._size(key) > 0

    def _choose(self) -> Key | None:
        """What leaves; None if nothing is there."""
        places = self.order.places
        if self.rule.oldest_first:
            return min(self.here, key=lambda key: places[key], default=None)
        return max(self.here, key=lambda key: places[key][1], default=None)

    def moved(self) -> dict[Key, tuple[int, int]]:
        """By what travels the places of the actions that it is freed and fetched for."""
        needed = {(each.stage, each.microbatch): at for at, each in enumerate(self.done) if each.kind in "IB"}
        by_need = sorted(self.away.items(), key=lambda each: needed[each[0]])
        return {key: (freed, self._fetch(key, freed, needed=needed[key])) for key, freed in by_need}

    def _fetch(self, key: Key, freed: int, *, needed: int) -> int:
        """Where it is asked for; takes its bytes from what is free from there on."""
        size, lead, place = self._size(key), self.rule.lead, needed
        earliest = freed + 1 if lead is None else max(freed + 1, needed - lead)
        while place > earliest and self.free[place - 1] >= size:
            place -= 1
            self.free[place] -= size
        return place

    def _steps(self, action: Action) -> tuple[int, int]:
        replica, recomputes = self.order.replica_of[action.stage], self.stages[action.stage].recomputes
        return memory_steps(replica.cost_of(keeps=not recomputes(action.microbatch)), action.kind)

    def _size(self, key: Key) -> int:
        return self.order.replica_of[key[0]].cost_of(keeps=True).stash_bytes
