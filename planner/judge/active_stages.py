"""Stages whose replicas hold their weights in parts, and gather them (section 2, "Gathered stages").

    order      F0 F0 F2 F2 B2 F0 B2 B0       two stages of a device, one of them active at a time
    gathered   0     2     . 0  2  0         each before the first action of a run of its own

Before every action the next `max_active_stages` different stages of the order are active. The others have given their
weights back; those of them that have none ask for them, in the order of their next actions.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy

from planner.judge.device_orders import DeviceOrders, Integers
from planner.judge.sizes import StageBytes
from planner.judge.stage_replicas import is_gathered
from planner.plan import Stage


class Gathering(NamedTuple):
    """One gathering of the weights of a stage."""

    stage: int
    position: int
    """Place in the orders of its devices of the action before which it is asked for."""


class GatheringRank(NamedTuple):
    """What devices with the same stages gather, one after the other."""

    devices: tuple[int, ...]
    """Their numbers in the device orders."""
    asked: list[Gathering]
    awaited: Integers
    """[actions of one of them] the gathering that each waits for, as a place in `asked`."""


def ranks_of(stages: Sequence[Stage], orders: DeviceOrders, *, most: int) -> list[GatheringRank]:
    """What is gathered, rank by rank; that the devices of a rank run one order is for a rule to say."""
    number = {device: place for place, device in enumerate(orders.devices)}
    found: dict[tuple[int, ...], GatheringRank] = {}
    for stage in filter(is_gathered, stages):
        devices = tuple(sorted(number[device] for group in stage.replicas for device in group))
        if devices not in found:
            own = orders.stage[orders.first[devices[0]] : orders.first[devices[0] + 1]]
            found[devices] = GatheringRank(devices, *_asked(own, most=most))
    return list(found.values())


def _asked(order: Integers, *, most: int) -> tuple[list[Gathering], Integers]:
    """What is asked for, and what every action waits for."""
    uses = {stage: numpy.flatnonzero(order == stage).tolist() for stage in numpy.unique(order).tolist()}
    asked, latest, active = list[Gathering](), dict[int, int](), set[int]()
    awaited = numpy.zeros(len(order), dtype=numpy.int64)
    for position, stage in enumerate(order.tolist()):
        if position == 0 or stage != order[position - 1]:
            coming = {each: bisect_left(places, position) for each, places in uses.items()}
            ahead = sorted((uses[each][at], each) for each, at in coming.items() if at < len(uses[each]))
            for _, each in ahead[:most]:
                if each not in active:
                    latest[each] = len(asked)
                    asked.append(Gathering(each, position))
            active = {each for _, each in ahead[:most]}
        awaited[position] = latest[stage]
    return asked, awaited


class GatheredLayer(NamedTuple):
    """A layer of a fully sharded stage: what each kind of action takes of a share, and what its messages do."""

    actions: Mapping[str, int]
    gathered_ns: int
    reduced_ns: int


def fully_sharded_times(
    layers: Sequence[GatheredLayer], *, overhead: Mapping[str, int], occupancy: int
) -> dict[str, int]:
    """What actions of a fully sharded stage take: each layer once its weights are there, in B till gradients are sent.

    One message after the other: a layer's weights from when the layer before it begins, a layer's gradients when it has
    ended. The backward pass begins with the layer whose weights F has left. `occupancy`: thousandths of a device that
    messages take from the layer beside them.
    """
    found = {"W": sum(layer.actions["W"] for layer in layers) + overhead["W"]}
    for kind in "FIB":
        rows = list(layers) if kind == "F" else list(layers)[::-1]
        begins, ends, last_message = [0], [0], 0
        for place, layer in enumerate(rows):
            there = 0
            if layer.gathered_ns and (place or kind == "F"):
                there = last_message = max(last_message, begins[-1]) + layer.gathered_ns
            if kind == "B" and place and rows[place - 1].reduced_ns:
                last_message = max(last_message, ends[-1]) + rows[place - 1].reduced_ns
            begins.append(max(ends[-1], there))
            asked = rows[place + 1].gathered_ns if place + 1 < len(rows) else 0  # with its begin
            beside = max(last_message - begins[-1], 0) + asked
            ends.append(begins[-1] + _slowed(layer.actions[kind], beside, left=1000 - occupancy))
        closing = max(last_message, ends[-1]) + rows[-1].reduced_ns if kind == "B" else ends[-1]
        found[kind] = closing + overhead[kind]
    return found


def _slowed(work: int, beside: int, *, left: int) -> int:
    """What work takes at `left` thousandths of its speed for the first `beside` nanoseconds, rounded up."""
    done = beside * left // 1000
    return beside + work - done if work > done else -(-work * 1000 // left) if work else 0


def active_bytes(stages: Sequence[Stage], sizes: Sequence[StageBytes], *, most: int) -> dict[str, int]:
    """What the gathered weights of a device take at most: those of its largest stages, `most` of them."""
    held: dict[str, list[int]] = {}
    for stage, size in zip(stages, sizes, strict=True):
        for device in (name for group in stage.replicas for name in group if is_gathered(stage)):
            held.setdefault(device, []).append(size.part_weights)
    return {device: sum(sorted(each)[-most:]) for device, each in held.items()}
