"""Stages of a chain given other devices of the same type, so that no link has far more to carry than others.

Two devices of a type exchange what they do, or one takes over what another did, wherever the sum of powers of the
links' loads falls by it: compiled, for the many devices whose plans take long to play.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver_models.compiled import kernel
from solver_models.instance import Instance, Integers
from solver_models.moves.annealing import Cooling
from solver_models.simulation.evaluator import LINKS

Groups = tuple[tuple[int, ...], ...]
Floats = NDArray[np.float64]

POWER = 4
"""Of a link's load in the sum: the busiest count most."""

TRANSFER_PART = 1e-3
"""What a message's own time counts beside the loads, so that short ways are taken where loads are alike."""


class Messages(NamedTuple):
    """M messages per microbatch between P stage replicas, and which of them begin or end at each stage replica."""

    source: Integers
    """[M] stage replica."""
    target: Integers
    """[M] stage replica."""
    size: Integers
    """[M] units."""
    start: Integers
    """[P + 1] where the messages of a stage replica begin in `at`."""
    at: Integers
    """[2 M] messages."""


class _RouteTimes(NamedTuple):
    """The routes between D devices."""

    latency: Floats
    """[D, D] what a message takes, however short, on every link of its way."""
    per_unit: Floats
    """[D, D] what it takes more per unit."""
    route_start: Integers
    """As in `Instance`."""
    route_links: Integers
    """As in `Instance`."""


class _PlacementLoads(NamedTuple):
    """Who sits where, and what the links have to carry."""

    place: Integers
    """[P] device of every stage replica."""
    replica_on: Integers
    """[D] stage replica on every device, or -1."""
    loads: Floats
    """[K] what every link carries per microbatch."""


@kernel
def carry(
    messages: Messages, times: _RouteTimes, placement: _PlacementLoads, replica: int, sign: int, other: int
) -> float:
    """Put on the links (`sign` 1), or take from them (-1), what a stage replica sends and gets; by how much the sum
    rises.

    What it exchanges with the stage replica `other` is left out.
    """
    more, loads = 0.0, placement.loads
    for k in range(messages.start[replica], messages.start[replica + 1]):
        m = messages.at[k]
        a, b = placement.place[messages.source[m]], placement.place[messages.target[m]]
        if messages.source[m] == other or messages.target[m] == other or a == b:
            continue
        time = times.latency[a, b] + messages.size[m] * times.per_unit[a, b]
        more += sign * TRANSFER_PART * time
        route = a * times.latency.shape[0] + b
        for at in range(times.route_start[route], times.route_start[route + 1]):
            link = times.route_links[at]
            before = loads[link]
            loads[link] = max(0.0, before + sign * time)
            more += loads[link] ** POWER - before**POWER
    return more


@kernel
def exchange(messages: Messages, times: _RouteTimes, placement: _PlacementLoads, here: int, there: int) -> float:
    """Let the stage replicas of two devices change places, of which one may have none; by how much the sum rises."""
    one, two = placement.replica_on[here], placement.replica_on[there]
    more = 0.0
    for sign in (-1, 1):
        if one >= 0:
            more += carry(messages, times, placement, one, sign, -1)
        if two >= 0:
            more += carry(messages, times, placement, two, sign, one)
        if sign == -1:
            placement.replica_on[here], placement.replica_on[there] = two, one
            if one >= 0:
                placement.place[one] = there
            if two >= 0:
                placement.place[two] = here
    return more


@kernel
def spread(
    messages: Messages,
    times: _RouteTimes,
    placement: _PlacementLoads,
    first: Integers,
    devices: Integers,
    cooling: Cooling,
) -> None:
    """Improve the placement in so many steps; `first` [C + 1]: where each class of like devices begins in `devices`."""
    np.random.seed(cooling.seed)
    class_of = np.zeros(len(devices), np.int64)
    for number in range(len(first) - 1):
        for k in range(first[number], first[number + 1]):
            class_of[devices[k]] = number
    for replica in range(len(placement.place)):
        carry(messages, times, placement, replica, 1, -1)
    placement.loads[:] /= 2  # both ends of every message have put it there
    for _ in range(cooling.steps):
        here = placement.place[np.random.randint(0, len(placement.place))]
        number = class_of[here]
        there = devices[np.random.randint(first[number], first[number + 1])]
        if there != here and exchange(messages, times, placement, here, there) > 0:
            exchange(messages, times, placement, there, here)


def spread_groups(instance: Instance, stage_of: Integers, *, groups: Groups, steps: int, seed: int = 0) -> Groups:
    """Groups of single devices, one per stage of a chain, on other devices with the same rows.

    Stages share no device.
    """
    place = np.array([device for group in groups for device in group], np.int64)
    messages = _messages(instance, stage_of, sizes=[len(group) for group in groups])
    layers, number = instance.layers, instance.num_devices
    if not len(messages.source) or not len(layers.route_links):
        return groups
    _, class_of = np.unique(layers.devices, axis=0, return_inverse=True)
    devices = np.argsort(class_of.ravel(), kind="stable").astype(np.int64)
    first = np.searchsorted(class_of.ravel()[devices], np.arange(class_of.max() + 2)).astype(np.int64)
    per_unit = np.where(layers.bandwidth > 0, 1e9 / np.maximum(layers.bandwidth, 1), 0.0)
    unit = float((messages.size[:, None] * np.median(per_unit) + 1).mean()) * max(1, len(messages.source) // number)
    times = _RouteTimes(layers.latency / unit, per_unit / unit, layers.route_start, layers.route_links)
    replica_on = np.full(number, -1, np.int64)
    replica_on[place] = np.arange(len(place))
    placement = _PlacementLoads(place, replica_on, np.zeros(instance.layers.options[LINKS]))
    spread(messages, times, placement, first, devices, Cooling(steps, 0.0, 0.0, seed))
    ends = np.cumsum([len(group) for group in groups])[:-1]
    return tuple(tuple(part.tolist()) for part in np.split(placement.place, ends))


def _messages(instance: Instance, stage_of: Integers, *, sizes: Sequence[int]) -> Messages:
    """Between neighbouring stages, every pair of replicas that share samples, both ways."""
    units = np.zeros((len(sizes), 2), np.int64)
    for producer, consumer, forward, backward in instance.layers.edges[:, :4].tolist():
        if stage_of[producer] != stage_of[consumer]:
            units[stage_of[producer]] += forward, backward
    firsts = np.cumsum([0, *sizes])
    rows = []
    for stage, (senders, receivers) in enumerate(pairwise(sizes)):
        for i, j in _sharing(senders, receivers):
            part = min((i + 1) / senders, (j + 1) / receivers) - max(i / senders, j / receivers)
            ends = int(firsts[stage] + i), int(firsts[stage + 1] + j)
            rows += [(*ends, int(units[stage, 0] * part)), (*ends[::-1], int(units[stage, 1] * part))]
    source, target, size = np.array(rows, np.int64).reshape(-1, 3).T
    of = np.concatenate((source, target))
    order = np.argsort(of, kind="stable").astype(np.int64)
    start = np.searchsorted(of[order], np.arange(firsts[-1] + 1)).astype(np.int64)
    return Messages(source.copy(), target.copy(), size.copy(), start, order % max(1, len(source)))


def _sharing(senders: int, receivers: int) -> Iterator[tuple[int, int]]:
    """Replicas of two stages whose ranges of samples overlap."""
    for i in range(senders):
        for j in range(i * receivers // senders, -(-(i + 1) * receivers // senders)):
            yield i, j
