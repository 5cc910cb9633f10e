"""Open stages of the packing bound on devices, whole plans at a time: the schedule bound rules them out one by one."""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from planner.bounds.cases.order_windows import Cases
from planner.bounds.cases.single_case import make_case
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import DeviceLoads, OpenStages
from planner.bounds.order.schedule_bound import HeadsAndTails
from planner.bounds.order.stage_replicas import StageReplica, StageReplicas, connect
from planner.bounds.order.windows_bound import TimeWindows
from planner.layout.costs import overlap
from planner.layout.stage_replicas import Transfer
from planner.plan import Stage

DeviceAssignment = tuple[tuple[int, tuple[int, ...]], ...]
"""Stages in order, each with the devices of its replicas in order."""

Held = tuple[tuple[int, ...], ...]
"""Per device: the stages that it holds."""

MAX_MICROBATCHES = 64
"""With more, the schedule bound of one plan takes too long."""

MAX_STEPS = 4_000
"""Times that a stage is tried on devices, or put there, until all assignments of a case are known, at most."""


class DeviceAssignments:
    """Every choice that puts open stages that make up the trunk on devices that hold one of the loads each.

    Devices are numbered kind by kind.
    """

    def __init__(self, stages: OpenStages, loads: DeviceLoads) -> None:
        self.stages, self.boundaries = stages, stages.boundaries
        self.kinds = [number for number, kind in enumerate(self.boundaries.kinds) for _ in range(kind.count)]
        self.on = [stages.on(number) for number in range(len(self.boundaries.kinds))]
        self.loads = loads
        self.steps = 0
        """Times that a stage was tried on devices, or put there."""

    @cached_property
    def known(self) -> set[tuple[int, int, int]]:
        """The loads: kind of device, first and second stage."""
        loads = self.loads
        return set(zip(loads.kind.tolist(), loads.first.tolist(), loads.second.tolist(), strict=True))

    @cached_property
    def begins(self) -> set[tuple[int, int]]:
        """Kinds of devices and the first stages that they may hold."""
        return {(kind, first) for kind, first, _ in self.known}

    def find(self, *, most: int, steps: int = MAX_STEPS) -> list[DeviceAssignment] | None:
        """All of them but for the names of devices; None if there are more, or too many paths to go through."""
        size, found = self.boundaries.size, list[DeviceAssignment]()
        if self.boundaries.count > MAX_MICROBATCHES or self.boundaries.forms.width.max() > 1:
            return None
        starts: dict[int, list[int]] = {}
        for stage in self.stages.is_open.nonzero()[0].tolist():
            starts.setdefault(int(self.stages.start[stage]), []).append(stage)
        left = list[tuple[int, DeviceAssignment, Held]]([(0, (), ((),) * len(self.kinds))])
        while left:
            boundary, assigned, held = left.pop()
            if boundary == size:
                found += [assigned] if self._is_whole(held) else []
                continue
            for stage in starts.get(boundary, ()):
                self.steps += 1
                for devices in self._choices(held, stage):
                    now = tuple((*own, stage) if number in devices else own for number, own in enumerate(held))
                    left.append((int(self.stages.end[stage]), (*assigned, (stage, devices)), now))
                    self.steps += 1
                    if self.steps > steps:  # many replicas come in more orders than there is time to list
                        return None
            if self.steps > steps or len(found) > most:
                return None
        return found if len(found) <= most else None

    def _is_whole(self, held: Held) -> bool:
        """Whether the devices with one stage may have it alone."""
        pairs = zip(self.kinds, held, strict=True)
        return all(len(own) != 1 or (kind, own[0], -1) in self.known for kind, own in pairs)

    def _choices(self, held: Held, stage: int) -> Iterator[tuple[int, ...]]:
        """Devices for the replicas of a stage, in order; of those of a kind that hold nothing, the first come first."""
        free, new, replicas = list[int](), dict[int, list[int]](), int(self.stages.replicas[stage])
        for number, (kind, own) in enumerate(zip(self.kinds, held, strict=True)):
            if not own and (kind, stage) in self.begins:
                new.setdefault(kind, []).append(number)
            if len(own) == 1 and (kind, own[0], stage) in self.known:
                free.append(number)
        yield from _arrange(free, list(new.values()), count=replicas)

    def is_late(self, assignment: DeviceAssignment) -> bool:
        """Whether no order of the actions of these stages fits into memory and is done by the deadline."""
        replicas = self.replicas(assignment)
        times = HeadsAndTails(self.boundaries.least.problem, replicas, anchor=None)
        stashes = [int(self.stages.stash[stage]) for stage, devices in assignment for _ in devices]
        for number, (replica, stash) in enumerate(zip(replicas.replicas, stashes, strict=True)):
            above = sum(replicas.replicas[other].held for other in times.partners.holders(number, replica.devices[0]))
            if above + stash > replica.budgets[0]:
                return True
        return TimeWindows(times, self.stages.deadline).is_empty(probes=0)

    def order_cases(self, assignment: DeviceAssignment) -> Cases:
        """The one case of these stages on these devices, whose orders the rules of a refutation look at."""
        replicas, b = self.replicas(assignment), self.boundaries
        devices = [int(replica.devices[0]) for replica in replicas.replicas]
        return make_case(replicas, devices, shape=(len(self.kinds), b.chunks), count=b.count, most=b.memory)

    def write(self, assignment: DeviceAssignment) -> tuple[Stage, ...]:
        """The stages with the names of their layers and devices; layers without time go with those before them."""
        b, problem = self.boundaries, self.boundaries.least.problem
        alike = [
            [d.name for d in problem.cluster.devices if (d.type, d.usable_bytes) in kind.members] for kind in b.kinds
        ]
        names = [name for members in alike for name in members]
        places = [0, *b.keys[1:], b.trunk.num_layers]
        layers = [b.least.layers[number].name for number in b.trunk.path]
        return tuple(
            Stage(
                layers=tuple(layers[places[self.stages.start[stage]] : places[self.stages.end[stage]]]),
                replicas=tuple((names[device],) for device in devices),
                recompute=bool(b.forms.recomputes[self.stages.form[stage]]),
            )
            for stage, devices in assignment
        )

    def replicas(self, assignment: DeviceAssignment) -> StageReplicas:
        """The stage replicas of an assignment: least durations and bytes, and the least transfers between them."""
        held: dict[int, list[int]] = {}
        for number, (_, devices) in enumerate(assignment):
            for device in devices:
                held.setdefault(device, []).append(number)
        replicas, first = list[StageReplica](), list[int]()
        for stage, devices in assignment:
            first.append(len(replicas))
            for device in devices:
                own = self.on[self.kinds[device]]
                budget = _budget(own, [(number, *assignment[number]) for number in held[device]])
                replicas.append(_replica(own, stage, device=device, budget=budget))
        transfers = list[Transfer]()
        for number in range(1, len(assignment)):
            (_, before), (stage, behind) = assignment[number - 1 : number + 1]
            meeting = int(self.stages.start[stage]), before, behind
            transfers += _transfers(self.boundaries, meeting, first=(first[number - 1], first[number]))
        return connect(replicas, transfers, optimizer_ns=0)


def _arrange(free: list[int], new: list[list[int]], *, count: int) -> Iterator[tuple[int, ...]]:
    """So many devices in every order, of each of the `new` lists its first ones, one after the other."""
    if not count:
        yield ()
        return
    for number in free:
        for rest in _arrange([other for other in free if other != number], new, count=count - 1):
            yield (number, *rest)
    for place, numbers in enumerate(new):
        if numbers:
            left = [*new[:place], numbers[1:], *new[place + 1 :]]
            for rest in _arrange(free, left, count=count - 1):
                yield (numbers[0], *rest)


def _replica(stages: OpenStages, stage: int, *, device: int, budget: int) -> StageReplica:
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


def _budget(stages: OpenStages, own: list[tuple[int, int, tuple[int, ...]]]) -> int:
    """Bytes left on a device by the states and receive buffers of its stages: their places, rows and devices."""
    left = stages.memory - sum(int(stages.static[stage]) for _, stage, _ in own)
    for (above, k, senders), (below, j, receivers) in pairwise(own):
        if below == above + 1:
            left += int(stages.entering[j]) if len(senders) == 1 else 0
            left += int(stages.leaving[k]) if len(receivers) == 1 else 0
    return left


def _transfers(
    boundaries: Boundaries, meeting: tuple[int, tuple[int, ...], tuple[int, ...]], *, first: tuple[int, int]
) -> Iterator[Transfer]:
    """Both directions between the replicas of one stage and the next that share samples."""
    boundary, senders, receivers = meeting
    for i, a in enumerate(senders):
        for j, b in enumerate(receivers):
            share = overlap(i, j, num_senders=len(senders), num_receivers=len(receivers))
            for is_backward in (False, True) if share[0] else ():
                time = 0 if a == b else boundaries.share_ns(boundary, share=share, is_backward=is_backward)
                ends = (first[0] + i, first[1] + j)
                sender, receiver = ends[::-1] if is_backward else ends
                yield Transfer(sender, receiver, is_backward, num_bytes=0, route=None, ticks=time)
