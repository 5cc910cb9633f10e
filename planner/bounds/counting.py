"""The counting bound: layers are whole, so that a device holds so many of them, and all devices together too few."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Protocol

import numpy

from planner.bounds.minimum_costs import Integers, Least, LeastWork
from planner.errors import refused_certificate

MAX_SPECIAL, MAX_ASSIGNMENTS = 3, 300_000
"""Most layers that are counted one by one, and most ways to put them on devices."""

_MAX_UNITS = 10
"""Units that are tried."""


class Counting:
    """What devices hold in whole layers.

    Proof. Without replicas every layer is on one device, whose load is M x the sum of its layers' least times. Let a be
    the unit: a layer of time w counts floor(w / a) units, and since floor(x) + floor(y) <= floor(x + y), a device
    whose layers take at most c per microbatch holds at most floor(c / a) units. Layers named special count by their
    time: next to special layers of s in all there is room for floor((c - s) / a) units. Every way to put the special
    layers on devices is looked at. In a chain, take the devices in the order of their first layers: the k-th has k
    layers before its first one, so its first action waits for their F, and, where a whole B is its last action, their
    B follow it. So its load is at most T less those, and c = that / M.
    """

    def __init__(self, least: Least, *, unit: int, special: Sequence[int]) -> None:
        self.least, self.unit = least, unit
        work = _counted_work(least)
        self.count = least.problem.num_microbatches
        self.special = [int(work[number]) for number in special]
        chosen = set(special)
        self.units = sum(int(time) // unit for number, time in enumerate(work) if number not in chosen)
        self.lost = lost_at_ends(least, least.time)

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan ends within `deadline` (without the optimizer)."""
        room = (deadline - self.lost) // self.count
        if deadline < 0 or room.max() < 0:
            return True
        assignments = every_assignment(room, len(self.special))
        special = numpy.array(self.special, dtype=numpy.int64).reshape(-1, 1, 1) + numpy.zeros_like(room)
        return not holds_all(room[None], assignments, special=special, units=self.units, count=self._units_in)

    def _units_in(self, left: Integers) -> Integers:
        """[subsets, devices] units for [subsets, (time,), devices] of room."""
        return numpy.maximum(left[:, 0], 0) // self.unit


def every_assignment(room: Integers, count: int) -> Integers:
    """[ways, count] devices for so many layers; of devices with equal room as many as there are layers."""
    order = numpy.argsort(room, kind="stable")
    is_far = numpy.ones(len(room), dtype=bool)
    is_far[count:] = room[order][count:] != room[order][: len(room) - count]
    devices = order[is_far]
    return devices[numpy.indices((len(devices),) * count).reshape(count, len(devices) ** count).T]


def holds_all(
    room: Integers, assignments: Integers, *, special: Integers, units: int, count: Callable[[Integers], Integers]
) -> bool:
    """Whether devices with so much room each hold so many units beside special layers.

    `room`: [resources, devices]; `special`: [special layers, resources, devices] what each takes of that; `count`:
    [subsets, devices] the units for [subsets, resources, devices] of what is left beside every subset of them.
    `assignments`: [ways, special layers] the device of each, for every way to put them on devices.
    """
    numbers = numpy.arange(len(special))
    subsets = numpy.arange(1 << len(special))[:, None] >> numbers & 1
    left = room - numpy.tensordot(subsets, special, axes=1)
    is_room, units_beside = numpy.asarray((left >= 0).all(axis=1)), count(left)
    held = numpy.full(len(assignments), units_beside[0].sum())
    is_possible = numpy.ones(len(assignments), dtype=bool)
    for place in numbers:
        own = assignments[:, place]
        beside = ((assignments == own[:, None]) << numbers).sum(axis=1)
        is_possible &= is_room[beside, own]
        is_first = (assignments[:, :place] != own[:, None]).all(axis=1)
        held += is_first * (units_beside[beside, own] - units_beside[0, own])
    return bool((is_possible & (held >= units)).any())


def applies_to(least: Least) -> bool:
    """Every layer is on one device, and the makespan is minimised."""
    options = least.problem.options
    return options.objective == "makespan" and least.problem.max_replicas == 1 and least.widths == (1,)


def _counted_work(least: Least) -> Integers:
    """Per layer: F and all of the backward pass on the fastest type."""
    return least.time.total


def raise_bound(least: Least, start: int, *, reached: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The largest value found to be no plan's, and what shows it; None if none is above `start`. Optimizer not counted.

    `reached`: what a plan takes.
    """
    few = (pair for pair in proposals(_counted_work(least)) if least.num_devices ** len(pair[1]) <= MAX_ASSIGNMENTS)
    made = ((unit, special, Counting(least, unit=unit, special=special)) for unit, special in few)
    return best_of(least, made, start=start, reached=reached)


class _Refutes(Protocol):
    """A way to count."""

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan ends within `deadline` (without the optimizer)."""
        ...


def best_of(
    least: Least, choices: Iterable[tuple[int, tuple[int, ...], _Refutes]], *, start: int, reached: int | None
) -> tuple[int, dict[str, Any]] | None:
    """The same for these ways to count: units, special layers, and what refutes by them."""
    best, found = start, None
    for unit, special, counting in choices:
        if not counting.is_out_of_reach(best):
            continue
        low, high = best, max(best + 1, 2 * max(best, least.problem.num_microbatches) if reached is None else reached)
        while reached is None and counting.is_out_of_reach(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if counting.is_out_of_reach(middle) else (low, middle)
        best = low + 1
        found = {"unit": unit, "special": [least.layers[number].name for number in special]}
    return None if found is None else (best, found)


def proposals(work: Integers) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Units: times of layers, and their halves; special: up to three of those with most beyond whole units."""
    sizes = sorted({int(time) for time in work if time > 0}, reverse=True)
    if len(sizes) > _MAX_UNITS:
        picks = numpy.linspace(0, len(work) - 1, _MAX_UNITS).astype(int)
        sizes = sorted({int(numpy.sort(work)[pick]) for pick in picks if work.max() and numpy.sort(work)[pick] > 0})
    for unit in sizes:
        beyond = numpy.where(work >= unit // 4, work % unit, 0)
        order = [int(number) for number in numpy.argsort(-beyond, kind="stable")[:MAX_SPECIAL] if beyond[number] > 0]
        for size in range(len(order) + 1):
            yield from ((unit, chosen) for chosen in combinations(order, size))


def read(least: Least, certificate: Mapping[str, Any]) -> Counting:
    """The counting that a certificate names; raises ValueError if it is none."""
    unit, special = read_counted(least, certificate)
    if least.num_devices ** len(special) > MAX_ASSIGNMENTS:
        raise refused_certificate(f"{len(special)} special layers are too many for the devices")
    return Counting(least, unit=unit, special=special)


def read_counted(least: Least, certificate: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """The unit and the special layers that a certificate names; raises ValueError if it does not."""
    unit, names = certificate["unit"], certificate["special"]
    if type(unit) is not int or not 0 < unit < 1 << 60:
        raise refused_certificate("unit is not an integer from 1")
    known = isinstance(names, list) and all(isinstance(name, str) and name in least.index for name in names)
    if not known or len(set(names)) < len(names) or len(names) > MAX_SPECIAL:
        raise refused_certificate(f"special = {str(names)[:60]!r} is not a short list of layers")
    return unit, tuple(least.index[name] for name in names)


def lost_at_ends(least: Least, time: LeastWork) -> Integers:
    """[devices] what the k-th device in the order of first layers waits for at the beginning and at the end.

    Nothing where the layers are no chain. A gradient that does not flow ends what follows a B.
    """
    lost = numpy.zeros(least.num_devices, dtype=numpy.int64)
    gradients = {(edge.producer, edge.consumer): edge.has_gradient for edge in least.problem.profile.edges}
    pairs = [(a.name, b.name) for a, b in pairwise(least.layers)]
    if any(pair not in gradients for pair in pairs):
        return lost
    after = [0]
    for number, pair in enumerate(pairs):
        after.append(after[-1] + int(time.returning[number]) if gradients[pair] else 0)
    least_after = numpy.minimum.accumulate(numpy.array(after[::-1]))[::-1]
    before = numpy.concatenate(([0], numpy.cumsum(time.forward)))
    size = min(least.num_devices, len(least.layers))
    lost[:size] = before[:size] + (0 if least.problem.options.split_backward else least_after[:size])
    lost[size:] = lost[size - 1]
    return lost
