"""Stashes that travel, as the evaluator plays them: two stage replicas more, whose actions take no time.

    order of a device   2F0  .   1F3   .   .   2B0
    near                     F0                 I0      the stash leaves; it has returned
    far                                F0  I0           it has left; it is asked for

The near one sends the stash as an activation, the far one sends it back as a gradient, both over the device's host
link. Since a device runs its actions in order, what stands behind a far F waits until the stash has left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

from planner.actions import KINDS, Action, Offload
from planner.errors import PlanError
from planner.layout.offload import Journey, StashPlaces, TimedOffload, moved_bytes
from planner.layout.stage_replicas import StageReplica
from planner.plan import Plan
from planner.simulation.encoding import EncodedOrders, Integers
from profiles.cluster import Cluster

_HAS_LEFT, _IS_ASKED_FOR, _HAS_RETURNED, _RUNS, _LEAVES = range(5)
"""What happens at the place of an action, in that order."""

_NEAR, _FAR = range(2)


def journeys(plan: Plan, replicas: Sequence[StageReplica], *, cluster: Cluster) -> tuple[Journey, ...]:
    """All stashes that travel, by stage replica, device and microbatch.

    PlanError if one cannot: without a host link, or with actions named that do not stand between its F and its I or B.
    """
    if not any(stage.offload for stage in plan.stages):
        return ()
    if plan.problem.microbatches is not None or plan.max_active_stages is not None or not cluster.overlap:
        raise PlanError("stashes travel for microbatches of one size, beside actions, and where no stage is gathered")
    found = list[Journey]()
    at = {device: dict(zip(order, range(len(order)), strict=True)) for device, order in plan.schedule.items()}
    for number, replica in enumerate(replicas):
        stage = plan.stages[replica.stage]
        if (stage.is_split and stage.offload) or any(
            map(stage.recomputes, (each.microbatch for each in stage.offload))
        ):
            raise PlanError(f"stage {replica.stage} offloads what it does not keep")
        for device, moved in ((device, moved) for device in replica.group for moved in stage.offload):
            routes, places = cluster.host_routes.get(device), _places(at.get(device, {}), replica.stage, moved=moved)
            if routes is None or places is None:
                raise PlanError(f"{device} cannot offload microbatch {moved.microbatch} of stage {replica.stage}")
            size = replica.cost_of(keeps=True).stash_bytes
            found.append(Journey(replica.stage, moved.microbatch, number, device, size, routes, places))
    return tuple(found)


def _places(at: Mapping[Action, int], stage: int, *, moved: Offload) -> StashPlaces | None:
    needed = at.get(Action("B", stage, moved.microbatch), at.get(Action("I", stage, moved.microbatch)))
    stated = at.get(Action("F", stage, moved.microbatch)), at.get(moved.freed_before), at.get(moved.fetched_before)
    known = [place for place in (*stated, needed) if place is not None]
    if len(known) < len(StashPlaces._fields) or known != sorted(known) or known[0] == known[1]:
        return None
    return StashPlaces(*known)


class OffloadedPlay:
    """The stashes of a plan that travel; `timed` once they were played."""

    def __init__(self, journeys: Sequence[Journey], *, device_orders: EncodedOrders) -> None:
        self.journeys = journeys
        self.first = device_orders.first
        self._number = {device: number for number, device in enumerate(device_orders.schedule)}
        pairs = dict.fromkeys((each.replica, each.device) for each in journeys)
        self._pairs = {pair: number for number, pair in enumerate(pairs)}
        """Near and far ones, by stage replica and device."""

    @property
    def moved_bytes(self) -> Integers:
        """[A] what a device has received again right before an action, less what has left by then."""
        lengths = dict(zip(self._number, numpy.diff(self.first).tolist(), strict=True))
        return numpy.concatenate(list(moved_bytes(self.journeys, lengths=lengths).values()))

    def inserted(self, schedule: Any, *, make_transfer: Callable[..., Any]) -> dict[str, Any]:
        """Fields of a schedule that the evaluator plays, with the stashes in between (`own_times` leaves them out)."""
        if schedule.host is not None:
            raise PlanError("stashes travel only where hosts take no time to ask")
        count = len(schedule.replica)
        rows = numpy.array(list(self._entries(len(schedule.stage))), dtype=numpy.int64)
        lengths = numpy.diff(schedule.first)
        device = numpy.repeat(numpy.arange(len(lengths)), lengths)
        own = device, numpy.arange(count) - schedule.first[device], numpy.full(count, _RUNS)
        keys = [numpy.concatenate(pair) for pair in zip(own, rows.T[:3], strict=True)]
        order = numpy.lexsort(keys[::-1])
        columns = zip((schedule.replica, schedule.kind, schedule.microbatch), rows.T[3:], strict=True)
        replica, kind, microbatch = (numpy.concatenate(pair)[order] for pair in columns)
        nothing = numpy.zeros(len(rows), dtype=numpy.int64)
        per_device = numpy.bincount(keys[0], minlength=len(lengths))
        self._at, self._num_transfers = numpy.argsort(order), len(schedule.transfers)
        return self._with_replicas(schedule, make_transfer=make_transfer) | {
            "first": numpy.concatenate([[0], numpy.cumsum(per_device)]).astype(numpy.int64),
            "replica": replica,
            "kind": kind,
            "microbatch": microbatch,
            "ticks": numpy.concatenate([schedule.ticks, nothing])[order],
            "gate": None if schedule.gate is None else numpy.concatenate([schedule.gate, nothing])[order],
        }

    def own_times(self, played: Any) -> Any:
        """The times of the schedule's own actions and transfers; notes those of the stashes."""
        count = len(self._at) - 4 * len(self.journeys)
        self._ready, self._sent = played.start[self._at[count:]].reshape(-1, 4), played.sent[self._num_transfers :]
        own = self._at[:count]
        return replace(played, start=played.start[own], took=played.took[own], sent=played.sent[: self._num_transfers])

    def _entries(self, base: int) -> Iterator[tuple[int, ...]]:
        """Four per stash: device, place, turn; stage replica, kind and microbatch; `base`: stage replicas before."""
        forward, backward = KINDS.index("F"), KINDS.index("I")
        for each in self.journeys:
            near = base + 2 * self._pairs[each.replica, each.device] + _NEAR
            far, device, places = near - _NEAR + _FAR, self._number[each.device], each.places
            yield device, places.made, _LEAVES, near, forward, each.microbatch
            yield device, places.freed, _HAS_LEFT, far, forward, each.microbatch
            yield device, places.fetched, _IS_ASKED_FOR, far, backward, each.microbatch
            yield device, places.needed, _HAS_RETURNED, near, backward, each.microbatch

    def _with_replicas(self, schedule: Any, *, make_transfer: Callable[..., Any]) -> dict[str, Any]:
        """The stage replicas and transfers of a schedule, and after them the near and far ones."""
        firsts = {(each.replica, each.device): each for each in self.journeys}
        base, transfers = len(schedule.stage), list(schedule.transfers)
        for number, each in zip(self._pairs.values(), (firsts[pair] for pair in self._pairs), strict=True):
            near = base + 2 * number
            for is_back, route in enumerate(each.routes):
                ticks = route.duration_ns(each.num_bytes)
                transfers.append(
                    make_transfer(
                        sender=near + is_back,
                        receiver=near + 1 - is_back,
                        is_backward=bool(is_back),
                        duration=ticks,
                        links=route.links if ticks else (),
                    )
                )
        stages = numpy.repeat([firsts[pair].stage for pair in self._pairs], 2)
        more = len(stages)
        return {
            "stage": numpy.concatenate([schedule.stage, stages]).astype(numpy.int64),
            "groups": [*schedule.groups, *((self._number[device],) for _, device in self._pairs for _ in range(2))],
            "duration": numpy.concatenate([schedule.duration, numpy.zeros((more, 4), dtype=numpy.int64)]),
            "transfers": transfers,
            "waits": numpy.concatenate([schedule.waits, numpy.tile([[0, 1], [1, 0]], (more // 2, 1))]),
            "waits_once": numpy.concatenate([schedule.waits_once, numpy.zeros(more, dtype=numpy.int64)]),
        }

    def timed(self) -> tuple[TimedOffload, ...]:
        """Both transfers of every stash, in order of their start."""
        found = list[TimedOffload]()
        for each, (leaves, _, asked, _) in zip(self.journeys, self._ready.tolist(), strict=True):
            pair = 2 * self._pairs[each.replica, each.device]
            for is_back, ready in enumerate((leaves, asked)):
                start = max(ready, int(self._sent[pair + is_back, each.microbatch]))
                end = start + each.routes[is_back].duration_ns(each.num_bytes)
                own = each.stage, each.microbatch, each.device
                found.append(TimedOffload(*own, bool(is_back), each.num_bytes, ready, start, end))
        return tuple(sorted(found, key=lambda timed: (timed.start_ns, timed[:4])))
