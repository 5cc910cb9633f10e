"""The laid-out plan: who runs which actions of a stage, for how long, what they hold, and what they send each other.

What travels once per iteration has a stage replica of its own, which runs nothing: with split placement the weights,
which leave when the iteration begins, and the finished gradient, which leaves when the stage has ended; so does the
all-reduce of a stage that queues for its links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from planner.actions import KINDS
from planner.errors import PlanError
from planner.layout.costs import CostModel, StageCost, StageTraffic, replica_overlaps
from planner.layout.gathers import Rank, gathering_ranks
from planner.layout.layer_passes import require_in_step
from planner.layout.split_placement import common, input_grad_ranges, part_of
from planner.plan import DeviceGroup, Plan, Stage
from profiles.cluster import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplica:
    """One replica of one stage, or with split placement what one device does for it."""

    stage: int
    replica: int
    group: DeviceGroup
    cost: StageCost
    kinds: str
    """The kinds of its actions."""
    kept_cost: StageCost | None = None
    """The cost of microbatches that keep everything, where only some recompute; None: `cost` is that of all."""
    size: int | None = None
    """It runs microbatches of this size alone, where the problem lists their sizes."""

    def cost_of(self, *, keeps: bool) -> StageCost:
        """Its cost for a microbatch that keeps everything or not, where only some recompute."""
        return self.kept_cost if keeps and self.kept_cost is not None else self.cost


class Transfer(NamedTuple):
    """What one stage replica sends another, after its F (forward) or its I or B (backward)."""

    sender: int
    """Number of the stage replica."""
    receiver: int
    """Number of the stage replica that waits for it."""
    is_backward: bool
    """Whether it is a gradient, or made of gradients."""
    num_bytes: int
    route: Route | None
    """None inside a device."""
    ticks: int
    """Nanoseconds on its route; 0 inside a device."""

    @property
    def links(self) -> tuple[int, ...]:
        """Links that it occupies; none if it takes no time."""
        return self.route.links if self.route is not None and self.ticks else ()


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """All stage replicas of a plan, and what flows between them."""

    replicas: tuple[StageReplica, ...]
    """By stage, then replica; then those that run nothing. Their places are their numbers."""
    transfers: tuple[Transfer, ...]
    """By pair of stages in the order of their first edge, then by replicas; then those within stages."""
    opening: tuple[int, ...]
    """Stage replicas whose activations leave when the iteration begins."""
    closing: Mapping[int, int]
    """Per stage the stage replica whose gradients leave when the stage has ended."""
    static_bytes: Mapping[str, int]
    """Per device that is used what stays resident."""
    synchronisation_ns: tuple[int, ...]
    """Per stage its all-reduce, or reduce-scatter; 0 without either."""
    steps_ns: Mapping[str, int]
    """Per device when it is done, counted from the last synchronisation."""
    collective_occupancy: int
    """Thousandths of a device that collectives take from computation beside them."""
    ranks: tuple[Rank, ...] = ()
    """Devices that gather the weights of their stages."""

    @property
    def tail_ns(self) -> int:
        """What follows the last synchronisation, until the slowest device is done."""
        return max(self.steps_ns.values())

    def lost_ns(self, ends_ns: Sequence[int]) -> int:
        """Most that a device's actions lose to its reductions, by when each stage's last action ends.

        One of its stages is reduced when nothing is left to compute: of those that end last the one that takes longest.
        """
        if not self.collective_occupancy:
            return 0
        held: dict[str, set[int]] = {}
        for device, stage in self.by_place:
            held.setdefault(device, set()).add(stage)
        lost = [-(-duration * self.collective_occupancy // 1000) for duration in self.synchronisation_ns]
        return max(sum(lost[s] for s in own) - max((ends_ns[s], lost[s]) for s in own)[1] for own in held.values())

    @cached_property
    def costs(self) -> list[list[StageCost]]:
        """[N, V] of every stage replica; V is 2 where a stage recomputes some microbatches: then of what it keeps."""
        return [[replica.cost_of(keeps=keeps) for keeps in self._variants] for replica in self.replicas]

    @cached_property
    def durations_ns(self) -> NDArray[numpy.int64]:
        """[N, V, 4] of F, I, W and B."""
        durations = [[cost.durations_ns for cost in costs] for costs in self.costs]
        return numpy.array(durations, numpy.int64).reshape(-1, len(self._variants), len(KINDS))

    @cached_property
    def memory_steps(self) -> NDArray[numpy.int64]:
        """[N, V, 4, 2] bytes that each adds while it runs, and for good."""
        steps = [[[memory_steps(cost, kind) for kind in KINDS] for cost in costs] for costs in self.costs]
        return numpy.array(steps, numpy.int64).reshape(-1, len(self._variants), len(KINDS), 2)

    @cached_property
    def _variants(self) -> tuple[bool, ...]:
        return (False, True) if any(replica.kept_cost is not None for replica in self.replicas) else (False,)

    @cached_property
    def by_sender(self) -> list[Transfer]:
        """The transfers by sending stage replica; of each, activations come first."""
        return sorted(self.transfers, key=lambda sent: (sent.sender, sent.is_backward))

    @property
    def working_transfers(self) -> list[Transfer]:
        """`by_sender`, without what is sent once."""
        return [sent for sent in self.by_sender if self.replicas[sent.sender].kinds]

    @property
    def by_place(self) -> dict[tuple[str, int], StageReplica]:
        """Who runs actions, by device and stage."""
        working = (each for each in self.replicas if each.kinds)
        return {(device, each.stage): each for each in working for device in each.group}

    def arrivals(self) -> list[list[int]]:
        """[N, 3] what every stage replica waits for.

        Activations (or the stash) per microbatch, gradients (of W alone: weight stashes) per microbatch, and what
        comes once before its first action, the weights.
        """
        counts = [[0, 0, 0] for _ in self.replicas]
        opening, closing = set(self.opening), set(self.closing.values())
        for sent in self.transfers:
            if sent.sender not in closing:
                counts[sent.receiver][2 if sent.sender in opening else sent.is_backward] += 1
        return counts


def lay_out(plan: Plan, *, costs: CostModel) -> LaidOut:
    """One stage replica per stage and replica, connected by the transfers between them.

    Where the problem lists the sizes of its microbatches, one for each size that the replica takes; what is dealt whole
    stays within its pipeline. PlanError if weights are gathered otherwise than the contract allows.
    """
    require_in_step(plan)
    problem, ranks = costs.problem, gathering_ranks(plan)
    if problem.microbatches is None:
        found = lay_out_stages(plan.stages, costs=costs)
        return replace(found, ranks=ranks, static_bytes=costs.static_bytes_of(plan)) if ranks else found
    if plan.shards_weights:
        raise PlanError("weights are gathered for microbatches of one size only")
    parts = (
        [
            _StageLayout(plan.stages_in(number), costs=costs, size=size, pipeline=number)
            for number, assignment in enumerate(plan.dealing)
            for size in sorted({problem.microbatches[m] for m in assignment})
        ]
        if plan.dealing
        else [_StageLayout(plan.stages, costs=costs, size=size) for size in problem.sizes]
    )
    return _join(parts, plan.stages, costs=costs, static_bytes=costs.static_bytes_of(plan))


def lay_out_stages(stages: Sequence[Stage], *, costs: CostModel) -> LaidOut:
    """The same of stages alone, for microbatches of the problem's own size."""
    laid_out: LaidOut = costs.remembered(_lay_out_stages, tuple(stages))
    return laid_out


def _lay_out_stages(costs: CostModel, stages: tuple[Stage, ...]) -> LaidOut:
    return _join([_StageLayout(stages, costs=costs)], stages, costs=costs, static_bytes=costs.static_bytes(stages))


def _join(
    parts: Sequence["_StageLayout"], stages: tuple[Stage, ...], *, costs: CostModel, static_bytes: Mapping[str, int]
) -> LaidOut:
    """The stage replicas of all parts by stage, then replica; those of a single one stand so already."""
    every = [(part, number) for part in parts for number in range(len(part.replicas))]
    if len(parts) > 1:
        every.sort(key=lambda each: (each[0].replicas[each[1]].stage, each[0].replicas[each[1]].replica))
    place = {(id(part), number): index for index, (part, number) in enumerate(every)}
    return LaidOut(
        replicas=tuple(part.replicas[number] for part, number in every),
        transfers=tuple(
            sent._replace(sender=place[id(part), sent.sender], receiver=place[id(part), sent.receiver])
            if len(parts) > 1
            else sent
            for part in parts
            for sent in part.transfers
        ),
        opening=tuple(place[id(part), number] for part in parts for number in part.opening),
        closing={stage: place[id(part), number] for part in parts for stage, number in part.closing.items()},
        static_bytes=static_bytes,
        synchronisation_ns=tuple(map(costs.synchronisation_ns, stages)),
        steps_ns=costs.steps_ns(stages),
        collective_occupancy=costs.problem.cluster.collective_occupancy,
    )


class _StageLayout:
    """Stage replicas of stages, and the transfers as they are found."""

    def __init__(
        self, stages: Sequence[Stage], *, costs: CostModel, size: int | None = None, pipeline: int = 0
    ) -> None:
        """`size`: for microbatches of this size alone; `pipeline`: number of the only replicas that are meant."""
        self.stages, self.costs, self.cluster = stages, costs.at(size), costs.problem.cluster
        self.costs.find_routes(stages)
        self.replicas: list[StageReplica] = []
        self.first: list[int] = []
        """Where the stage replicas of every stage begin."""
        for number, stage in enumerate(stages):
            self.first.append(len(self.replicas))
            own = self._replicas_of(stage, number)
            self.replicas += (
                [replace(each, size=size, replica=each.replica + pipeline) for each in own] if size else own
            )
        self.opening: list[int] = []
        self.closing: dict[int, int] = {}
        self.transfers: list[Transfer] = []
        self._connect_all()

    def _connect_all(self) -> None:
        for (a, b), traffic in self.costs.traffic(self.stages).items():
            if self.stages[a].is_split or self.stages[b].is_split:
                self._connect_split(a, b, traffic=traffic)
            else:
                self._connect(a, b, traffic=traffic)
        split = [number for number, stage in enumerate(self.stages) if stage.is_split]
        for connect in (self._send_weights, self._send_gradient, self._connect_parts):
            for number in split:
                connect(number)

    def _replicas_of(self, stage: Stage, number: int) -> list[StageReplica]:
        """One per replica; with split placement one per device that works for the stage, its owner first.

        There W has a stage replica of its own, since it waits for other arrivals than an I on the same device.
        """
        costs = self.costs
        if not stage.is_split:
            keeping = stage.keeping
            return [
                StageReplica(
                    stage=number,
                    replica=n,
                    group=group,
                    cost=costs.stage_cost(stage, n),
                    kinds="FIWB",
                    kept_cost=None if keeping is None else costs.stage_cost(keeping, n),
                )
                for n, group in enumerate(stage.replicas)
            ]
        parts, found = costs.parts(stage), list[StageReplica]()
        for n, part in enumerate(parts):
            cost, kinds = costs.part_cost(stage, part), part.kinds.replace("W", "")
            found.append(StageReplica(stage=number, replica=n, group=(part.device,), cost=cost, kinds=kinds))
        for n, part in enumerate(parts):
            if "W" in part.kinds:
                found.append(replace(found[n], kinds="W"))
        return found

    def _connect(self, a: int, b: int, *, traffic: StageTraffic) -> None:
        """Every pair of replicas of two stages exchanges the overlap of its sample ranges."""
        for i, j, share, whole in replica_overlaps(self.stages[a], self.stages[b]):
            sender, receiver = self.first[a] + i, self.first[b] + j
            self._send(sender, receiver, num_bytes=-(-traffic.forward_bytes * share // whole))
            if traffic.has_gradient:
                self._send(receiver, sender, num_bytes=-(-traffic.backward_bytes * share // whole), is_backward=True)

    def _connect_split(self, a: int, b: int, *, traffic: StageTraffic) -> None:
        """Activations go between owners, gradients between the stage replicas that run I for the same samples."""
        for i, j, share, whole in replica_overlaps(self.stages[a], self.stages[b]):
            self._send(self.first[a] + i, self.first[b] + j, num_bytes=-(-traffic.forward_bytes * share // whole))
        for taker in input_grad_ranges(self.stages[a]) if traffic.has_gradient else ():
            for maker in input_grad_ranges(self.stages[b]):
                if both := common(taker, maker):
                    ends = self.first[b] + maker.number, self.first[a] + taker.number
                    self._send(*ends, num_bytes=part_of(both, traffic.backward_bytes), is_backward=True)

    def _send_weights(self, number: int) -> None:
        """With split placement: the weights go from the owner to every other I, once."""
        owner, stage = self.first[number], self.stages[number]
        self.opening.append(self._add_idle(owner))
        for n, part in enumerate(self.costs.parts(stage)):
            if n and "I" in part.kinds:
                self._send(self.opening[-1], owner + n, num_bytes=self.costs.parameter_bytes(stage))

    def _send_gradient(self, number: int) -> None:
        """With split placement: the finished gradient goes from W to the owner, once."""
        owner, stage = self.first[number], self.stages[number]
        for n, part in enumerate(self.costs.parts(stage)):
            if n and "W" in part.kinds:
                self.closing[number] = self._add_idle(owner + n)
                self._send(self.closing[number], owner, num_bytes=self.costs.gradient_bytes(stage), is_backward=True)

    def _connect_parts(self, number: int) -> None:
        """With split placement: the stash goes from the owner to every other I, the weight stash from every I to W."""
        owner, stage = self.first[number], self.stages[number]
        parts, whole = self.costs.parts(stage), self.costs.stage_cost(stage, 0)
        base = next((n for n, part in enumerate(parts) if "W" in part.kinds), None)
        for n, part in enumerate(parts):
            if part.share and n:
                self._send(owner, owner + n, num_bytes=part_of(part.share, whole.stash_bytes))
            if part.share and base not in (None, n):
                weight_stash = part_of(part.share, whole.weight_stash_bytes)
                self._send(owner + n, owner + len(parts), num_bytes=weight_stash, is_backward=True)

    def _add_idle(self, number: int) -> int:
        """A stage replica beside another one that runs nothing."""
        self.replicas.append(replace(self.replicas[number], kinds=""))
        return len(self.replicas) - 1

    def _send(self, sender: int, receiver: int, *, num_bytes: int, is_backward: bool = False) -> None:
        """Transfers go between the first devices of the groups; inside one device nothing moves."""
        a, b = self.replicas[sender].group[0], self.replicas[receiver].group[0]
        route = None if a == b else self.cluster.route(a, b, num_bytes=num_bytes)
        ticks = 0 if route is None else route.duration_ns(num_bytes)
        self.transfers.append(Transfer(sender, receiver, is_backward, num_bytes, route, ticks))


def memory_steps(cost: StageCost, kind: str) -> tuple[int, int]:
    """Bytes that an action adds while it runs, and bytes it adds (or gives back, negative) for good."""
    if kind == "F":
        return cost.held_bytes + cost.workspace_bytes, cost.held_bytes
    rest = cost.stash_bytes - cost.held_bytes
    if kind == "I":
        return rest + cost.workspace_bytes, cost.weight_stash_bytes - cost.held_bytes
    if kind == "W":
        return cost.weight_workspace_bytes, -cost.weight_stash_bytes
    return cost.whole_backward_bytes - cost.held_bytes + cost.workspace_bytes, -cost.held_bytes
