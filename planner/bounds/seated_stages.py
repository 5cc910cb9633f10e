"""Open stages of the packing bound on devices, whole plans at a time: the schedule bound rules them out one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from planner.bounds.boundaries import Boundaries
from planner.bounds.device_loads import DeviceLoads, OpenStages
from planner.bounds.schedule import HeadsAndTails
from planner.bounds.stage_replicas import Lanes, StageReplica, Transfer
from planner.bounds.windows import TimeWindows
from planner.costs import overlap

Seating = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in order, each with the devices of its replicas in order."""

Held = tuple[tuple[int, ...], ...]
"""Per device: the stages that it holds."""

MAX_STEPS = 400
"""Times that a stage is tried on devices, or put there, until all seatings of a case are known, at most."""


@dataclass(frozen=True, slots=True)
class Seatings:
    """Every way to put open stages that make up the trunk on devices that hold one of the loads each."""

    stages: OpenStages
    loads: DeviceLoads

    def find(self, *, most: int) -> list[Seating] | None:
        """All of them but for the names of devices; None if there are more, or too many ways to go through."""
        b, stages, found = self.stages.boundaries, self.stages, list[Seating]()
        known = set(zip(self.loads.first.tolist(), self.loads.second.tolist(), strict=True))
        alone = {first for first, second in known if second < 0}
        starts: dict[int, list[int]] = {}
        for stage in stages.is_open.nonzero()[0].tolist():
            starts.setdefault(int(stages.start[stage]), []).append(stage)
        steps, left = MAX_STEPS, list[tuple[int, Seating, Held]]([(0, (), ((),) * b.num_devices)])
        while left:
            boundary, seated, held = left.pop()
            if boundary == b.size:
                found += [seated] if all(len(own) != 1 or own[0] in alone for own in held) else []
                continue
            for stage in starts.get(boundary, ()):
                steps -= 1
                for devices in _choices(held, stage, known=known, replicas=int(stages.replicas[stage])):
                    now = tuple((*own, stage) if number in devices else own for number, own in enumerate(held))
                    left.append((int(stages.end[stage]), (*seated, (stage, devices)), now))
                    steps -= 1
            if steps < 0 or len(found) > most:
                return None
        return found if len(found) <= most else None

    def is_late(self, seating: Seating) -> bool:
        """Whether no order of the actions of these stages is done by the deadline."""
        stages, b = self.stages, self.stages.boundaries
        times = HeadsAndTails(b.least.problem, relaxed_lanes(stages, seating), anchor=None)
        return TimeWindows(times, stages.deadline).is_empty(probes=0)


def _choices(
    held: Held, stage: int, *, known: set[tuple[int, int]], replicas: int
) -> Iterator[tuple[int, ...]]:
    """Devices for the replicas of a stage, in order; of devices that hold nothing yet the first ones come first."""
    free = [number for number, own in enumerate(held) if len(own) == 1 and (own[0], stage) in known]
    new = [number for number, own in enumerate(held) if not own]
    for devices in permutations([*free, *new[:replicas]], replicas):
        fresh = [number for number in devices if not held[number]]
        if fresh == new[: len(fresh)]:
            yield devices


def relaxed_lanes(stages: OpenStages, seating: Seating) -> Lanes:
    """The stage replicas of a seating with their least durations and bytes, and the least transfers between them."""
    held: dict[int, list[int]] = {}
    for number, (_, devices) in enumerate(seating):
        for device in devices:
            held.setdefault(device, []).append(number)
    lanes, first = list[StageReplica](), list[int]()
    for stage, devices in seating:
        first.append(len(lanes))
        for device in devices:
            lanes.append(_lane(stages, stage, device=device, budget=_budget(stages, seating, held[device])))
    flows = [
        flow
        for number in range(1, len(seating))
        for flow in _flows(stages, seating[number - 1], seating[number], first=(first[number - 1], first[number]))
    ]
    tables: list[tuple[list[Transfer], ...]] = [tuple([] for _ in lanes) for _ in range(4)]
    outputs, inputs, returns, gradients = tables
    for flow in flows:
        (returns if flow.is_backward else outputs)[flow.sender].append(flow)
        (gradients if flow.is_backward else inputs)[flow.receiver].append(flow)
    return Lanes(
        lanes=tuple(lanes), inputs=inputs, outputs=outputs, gradients=gradients, returns=returns,
        sent_or_received={}, optimizer_ns=0,
    )  # fmt: skip


def _budget(stages: OpenStages, seating: Seating, own: list[int]) -> int:
    """Bytes left on a device by the states and receive buffers of its stages."""
    left = stages.boundaries.memory - sum(int(stages.static[seating[number][0]]) for number in own)
    for a, b in zip(own, own[1:], strict=False):
        if b == a + 1:
            (k, senders), (j, receivers) = seating[a], seating[b]
            left += int(stages.entering[j]) if len(senders) == 1 else 0
            left += int(stages.leaving[k]) if len(receivers) == 1 else 0
    return left


def _lane(stages: OpenStages, stage: int, *, device: int, budget: int) -> StageReplica:
    return StageReplica(
        devices=(str(device),),
        forward=int(stages.forward[stage]),
        returning=int(stages.returning[stage]),
        rest=int(stages.rest[stage]),
        held=int(stages.held[stage]),
        kept=int(stages.kept[stage]),
        budgets=(budget,),
        synchronisation=int(stages.synchronisation[stage]),
    )


def _flows(
    stages: OpenStages, upper: tuple[int, tuple[int, ...]], lower: tuple[int, tuple[int, ...]], *, first: tuple[int, int]
) -> Iterator[Transfer]:
    """Both ways between the replicas of one stage and the next that share samples."""
    boundary, (senders, receivers) = int(stages.start[lower[0]]), (upper[1], lower[1])
    for i, a in enumerate(senders):
        for j, b in enumerate(receivers):
            share, whole = overlap(i, j, num_senders=len(senders), num_receivers=len(receivers))
            for is_backward in (False, True) if share else ():
                time = 0 if a == b else stages.boundaries.share_ns(boundary, share, whole, is_backward=is_backward)
                ends = (first[0] + i, first[1] + j)
                sender, receiver = ends[::-1] if is_backward else ends
                yield Transfer(sender=sender, receiver=receiver, is_backward=is_backward, duration=time, links=())
