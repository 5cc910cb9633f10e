"""What subsets of the devices cost, and which of them are alike.

Money is counted in whole millionths of the currency per hour, and in those times nanoseconds for an iteration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.batch_problem import BatchProblem, Question
from planner.device_subsets import question_on
from planner.plan import Plan
from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import PRICE_DECIMALS

MICROS: int = 10**PRICE_DECIMALS
"""Parts of the currency in which prices are counted."""

PER_UNIT = MICROS * 3600 * 10**9
"""Millionths per hour times nanoseconds that are one unit of the currency."""

Counts = tuple[int, ...]
"""Devices of every class."""


def micro_per_hour(device: Device) -> int:
    """The price of a device; a device without one is free."""
    return round((device.price_per_hour or 0.0) * MICROS)


def price_of(cluster: Cluster, devices: Iterable[str]) -> int:
    """The price of several devices together, in millionths per hour."""
    return sum(micro_per_hour(cluster.by_name[name]) for name in devices)


@dataclass(frozen=True, kw_only=True)
class DeviceKinds:
    """The devices of a question, divided into classes whose members can change places."""

    problem: Question

    @cached_property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """The classes, in the order of their first devices; a pinned device is one of its own."""
        cluster = self.problem.cluster
        ends, meshed = _ends(cluster), _is_meshed(cluster)
        classes = list[list[Device]]()
        for device in cluster.devices:
            alike = (names for names in classes if self._is_twin(device, names[0], ends=ends))
            found = next(alike, None) if device.name not in self.required else None
            if found is None:
                classes.append([device])
            else:
                found.append(device)
        order = {device.name: number for number, device in enumerate(cluster.devices)}
        parts = [part for names in classes for part in _parts([each.name for each in names], ends, is_meshed=meshed)]
        return tuple(sorted(parts, key=lambda names: order[names[0]]))

    def _is_twin(self, device: Device, other: Device, *, ends: Mapping[str, Mapping[str, Link]]) -> bool:
        """Whether they differ by name only, and have equal links to everything but each other."""
        if other.name in self.required or replace(other, name=device.name) != device:
            return False
        ours, theirs = (
            {end: link for end, link in ends[name].items() if end not in (device.name, other.name)}
            for name in (device.name, other.name)
        )
        return ours.keys() == theirs.keys() and all(_speed(ours[end]) == _speed(theirs[end]) for end in ours)

    @cached_property
    def required(self) -> frozenset[str]:
        """Devices that every plan uses: those of pinned layers and of a given placement, or all if none may be idle."""
        options = self.problem.options
        if not options.idle_devices:
            return frozenset(device.name for device in self.problem.cluster.devices)
        placed = (name for groups in options.placement or () for group in groups for name in group)
        return frozenset([*(pin.device for pin in options.pinned), *placed])

    @property
    def all(self) -> Counts:
        """The counts of the whole cluster, one per kind."""
        return tuple(map(len, self.members))

    @cached_property
    def fewest(self) -> Counts:
        """Counts of devices that every plan uses, per kind."""
        return tuple(int(names[0] in self.required) for names in self.members)

    @cached_property
    def prices(self) -> Counts:
        """Of one device of every class, in millionths per hour."""
        return tuple(price_of(self.problem.cluster, names[:1]) for names in self.members)

    def price(self, counts: Sequence[int]) -> int:
        """Of so many devices of every class."""
        return sum(count * price for count, price in zip(counts, self.prices, strict=True))

    def devices(self, counts: Sequence[int]) -> tuple[str, ...]:
        """The first so many of every class, in the order of the cluster."""
        chosen = {name for names, count in zip(self.members, counts, strict=True) for name in names[:count]}
        return tuple(device.name for device in self.problem.cluster.devices if device.name in chosen)

    def on(self, counts: Sequence[int]) -> Question:
        """The question of the least makespan on so many devices of every class."""
        return question_on(self.problem, self.devices(counts))

    def candidates(self, counts: Sequence[int]) -> dict[int | None, Problem]:
        """The same at every size of microbatches that may be chosen; under None where nothing is to be chosen."""
        question = self.on(counts)
        if isinstance(question, BatchProblem):
            return dict(zip(question.sizes, question.candidates, strict=True))
        return {None: question}


def cost_of(problem: Question, plan: Plan, *, makespan_ns: int) -> int:
    """Money for an iteration: what the devices used cost while it lasts."""
    return price_of(problem.cluster, plan.devices) * makespan_ns


def _ends(cluster: Cluster) -> dict[str, dict[str, Link]]:
    """Per device: the link to each of its neighbours."""
    found: dict[str, dict[str, Link]] = {device.name: {} for device in cluster.devices}
    for link in cluster.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in found:
                found[end][other] = link
    return found


def _is_meshed(cluster: Cluster) -> bool:
    """Whether every two devices have a link of their own, which transfers between them take."""
    ends = _ends(cluster)
    names = {device.name for device in cluster.devices}
    return all(names - {name} <= set(others) for name, others in ends.items())


def _speed(link: Link) -> Link:
    """A link without its ends."""
    return replace(link, a="a", b="b")


def _parts(names: list[str], ends: Mapping[str, Mapping[str, Link]], *, is_meshed: bool) -> list[tuple[str, ...]]:
    """The class as a whole, unless its members could be passed through on the way between others.

    Which of two equally long routes is taken depends on the order of the links; a device at the end of a single one, or
    with a link to every other device, is on no route but its own.
    """
    outer = ends[names[0]].keys() - set(names)
    return [tuple(names)] if is_meshed or len(outer) <= 1 else [(name,) for name in names]
