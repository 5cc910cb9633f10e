"""Stashes that travel to the memory of a host (section 4, "Offload").

    order       1F0        1F1    1F2        1B1    1B0          of stage 1, whose microbatch 0 travels
    device       + + + + + + + + | freed     fetched | + + +     its bytes, `freed_before` 1F2, `fetched_before` 1B1
    host             + + + + + + + + + + + + + + + |

It leaves at the end of its F, and the action that it is freed for waits until it has left. It is asked for when all is
over that the other action waits for in its order, and its I or B waits for it. On a link both are transfers among
others. Whatever the times, so much is held from one action to another as the orders say.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

import numpy

from planner.actions import Action, Offload
from planner.judge.device_orders import DeviceOrders, Integers
from planner.judge.routes import SECOND, Routes
from planner.plan import Stage
from profiles.cluster import Cluster, Device


class HostRoute(NamedTuple):
    """What a transfer to a host, or back, occupies, and for how long."""

    links: tuple[Hashable, ...]
    time_ns: int


class OffloadedStash(NamedTuple):
    """A stash on one device that travels; the last four are rows of actions."""

    stage: int
    microbatch: int
    device: str
    num_bytes: int
    routes: tuple[HostRoute, HostRoute]
    """Out and back."""
    made: int
    freed: int
    fetched: int
    needed: int


def recomputes(stage: Stage, microbatch: int) -> bool:
    """Whether a stage recomputes a microbatch, so that it has no stash to travel."""
    return bool(stage.recompute) and (not stage.recompute_microbatches or microbatch in stage.recompute_microbatches)


def rows_of(moved: Offload, number: int, *, order: Mapping[Action, int]) -> tuple[int, int, int, int] | None:
    """Rows of its F, of what it is freed and fetched for, and of its I or B; None if they do not follow each other so.

    `order`: rows by action, of a device of stage `number`.
    """
    ends = [order[kind, number, moved.microbatch] for kind in "IB" if (kind, number, moved.microbatch) in order]  # type: ignore[index]
    made, freed, fetched = (
        order.get(action)
        for action in (Action("F", number, moved.microbatch), moved.freed_before, moved.fetched_before)
    )
    if made is None or freed is None or fetched is None or not ends:
        return None
    return (made, freed, fetched, ends[0]) if made < freed <= fetched <= ends[0] else None


def rows_on(orders: DeviceOrders, device: str) -> dict[Action, int]:
    """Rows by action of a device; none where it has no list."""
    if device not in orders.schedule:
        return {}
    begin = int(orders.first[orders.devices.index(device)])
    return {action: begin + place for place, action in enumerate(orders.schedule[device])}


def host_routes(
    cluster: Cluster, device: Device, *, routes: Routes, num_bytes: int
) -> tuple[HostRoute, HostRoute] | None:
    """Out and back between a device and its host; None where it has no host link."""
    for link in cluster.host_links:
        if link.name == device.host_link:
            time_ns = link.latency_ns - (-num_bytes * SECOND // link.bandwidth_bytes_per_s)
            out, back = "out", "back" if link.duplex else "out"
            return HostRoute(((out, link.name),), time_ns), HostRoute(((back, link.name),), time_ns)
    if not device.host_link:
        return None
    ends = (device.name, device.host), (device.host, device.name)
    found = [routes.find(*each, num_bytes=num_bytes) for each in ends]
    there, again = (HostRoute(each.links, each.time_ns(num_bytes)) for each in found)
    return there, again


def moved_bytes(stashes: list[OffloadedStash], *, count: int) -> Integers:
    """[actions] what a device holds more, or less, right before an action than after the one before it."""
    found = numpy.zeros(count, dtype=numpy.int64)
    for stash in stashes:
        found[stash.fetched] += stash.num_bytes
        found[stash.freed] -= stash.num_bytes
    return found


def host_bytes(stashes: list[OffloadedStash], hosts: Mapping[str, str]) -> dict[str, int]:
    """By host what its devices keep there: of each device the most that is away at once, from F to I or B."""
    found: dict[str, int] = {}
    for device in dict.fromkeys(stash.device for stash in stashes):
        own = [stash for stash in stashes if stash.device == device]
        most = max(sum(each.num_bytes for each in own if each.made <= at.made < each.needed) for at in own)
        found[hosts[device]] = found.get(hosts[device], 0) + most
    return found


def transfers(stashes: list[OffloadedStash]) -> Iterator[tuple[OffloadedStash, bool, HostRoute]]:
    """Every transfer of a stash, all those out before any back: whether it comes back, and its route."""
    for is_back in (False, True):
        for stash in stashes:
            yield stash, is_back, stash.routes[is_back]
