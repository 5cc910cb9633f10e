"""Who runs which actions of a stage, and what they send each other: the stage replicas of a plan.

What travels once per iteration has a stage replica of its own, which runs nothing: with split placement the weights,
which leave when the iteration begins, and the finished gradient, which leaves when the stage has ended; so does the
all-reduce of a stage that queues for its links.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from planner.layout.costs import CostModel, StageCost, StageTraffic, replica_overlaps
from planner.layout.split_placement import common, input_grad_ranges, part_of
from planner.plan import DeviceGroup, Plan
from planner.problem import Problem
from profiles.cluster import Route


class ReplicaTransfer(NamedTuple):
    """What one stage replica sends another."""

    target: "StageReplica"
    num_bytes: int
    route: Route | None
    """None inside a device."""

    @property
    def ticks(self) -> int:
        """How long it takes; 0 inside a device."""
        return 0 if self.route is None else self.route.duration_ns(self.num_bytes)


@dataclass(slots=True, kw_only=True, eq=False)
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
    base: "StageReplica | None" = None
    """The stage replica on the same device that its W was taken from."""
    forward_to: list[ReplicaTransfer] = field(default_factory=list)
    """Receivers of its activations."""
    backward_to: list[ReplicaTransfer] = field(default_factory=list)
    """Receivers of its gradients."""
    num_inputs: int = 0
    """Arrivals that each of its microbatches waits for: activations, or the stash."""
    num_gradients: int = 0
    """Gradients that each I or B waits for; in a stage replica of W alone, weight stashes."""
    num_once: int = 0
    """Arrivals before its first action: the weights."""

    def cost_of(self, *, keeps: bool) -> StageCost:
        """Its cost for a microbatch that keeps everything or not, where only some recompute."""
        return self.kept_cost if keeps and self.kept_cost is not None else self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReplicas:
    """All stage replicas of a plan."""

    every: list[StageReplica]
    """By stage, then replica; then those that run nothing."""
    opening: list[StageReplica]
    """Those whose activations leave when the iteration begins."""
    closing: dict[int, StageReplica]
    """Per stage the one whose gradients leave when the stage has ended."""

    @property
    def working(self) -> list[StageReplica]:
        """Those that run actions."""
        return [replica for replica in self.every if replica.kinds]


def make_replicas(problem: Problem, plan: Plan, *, costs: CostModel) -> PlanReplicas:
    """One stage replica per stage and replica, connected by the transfers between them.

    Where the problem lists the sizes of its microbatches, one for each size that the replica takes; what is dealt whole
    stays within its pipeline.
    """
    if problem.microbatches is None:
        return _make_replicas(problem, plan, costs=costs)
    if not plan.dealing:
        return _beside_each_other([_replicas_at(plan, size, costs=costs) for size in problem.sizes])
    return _beside_each_other(
        [
            _replicas_at(replace(plan, stages=plan.stages_in(number)), size, costs=costs, pipeline=number)
            for number, assignment in enumerate(plan.dealing)
            for size in sorted({problem.microbatches[m] for m in assignment})
        ]
    )


def _replicas_at(plan: Plan, size: int, *, costs: CostModel, pipeline: int = 0) -> PlanReplicas:
    """The stage replicas of a plan, or of one of its pipelines, for microbatches of one size."""
    there = costs.at(size)
    replicas = _make_replicas(there.problem, plan, costs=there)
    for replica in replicas.every:
        replica.size, replica.replica = size, replica.replica + pipeline
    return replicas


def _beside_each_other(parts: list[PlanReplicas]) -> PlanReplicas:
    """All of them, by stage, then replica, then size."""
    every = [replica for part in parts for replica in part.every]
    return PlanReplicas(
        every=sorted(every, key=lambda replica: (replica.stage, replica.replica)),
        opening=[replica for part in parts for replica in part.opening],
        closing={number: replica for part in parts for number, replica in part.closing.items()},
    )


def _make_replicas(problem: Problem, plan: Plan, *, costs: CostModel) -> PlanReplicas:
    """The stage replicas for microbatches of the problem's own size."""
    costs.find_routes(plan.stages)
    stages = [_stage_replicas(plan, number, costs=costs) for number in range(len(plan.stages))]
    for (a, b), traffic in costs.traffic(plan.stages).items():
        if plan.stages[a].is_split or plan.stages[b].is_split:
            _connect_split(plan, (stages[a], stages[b]), traffic=traffic, costs=costs)
            continue
        for i, j, share, whole in replica_overlaps(plan.stages[a], plan.stages[b]):
            sender, receiver = stages[a][i], stages[b][j]
            size = -(-traffic.forward_bytes * share // whole)
            sender.forward_to.append(_transfer(problem, sender, receiver=receiver, num_bytes=size))
            receiver.num_inputs += 1
            if traffic.has_gradient:
                size = -(-traffic.backward_bytes * share // whole)
                receiver.backward_to.append(_transfer(problem, receiver, receiver=sender, num_bytes=size))
                sender.num_gradients += 1
    opening, closing = list[StageReplica](), dict[int, StageReplica]()
    for number, group in enumerate(stages):
        if plan.stages[number].is_split:
            opening.append(_send_weights(plan, group, costs=costs))
            closing |= _send_gradient(plan, group, costs=costs)
            _connect_parts(plan, group, costs=costs)
    every = [replica for group in stages for replica in group]
    return PlanReplicas(every=[*every, *opening, *closing.values()], opening=opening, closing=closing)


def _stage_replicas(plan: Plan, number: int, *, costs: CostModel) -> list[StageReplica]:
    """One stage replica per replica; with split placement one per device that works for the stage, its owner first."""
    stage = plan.stages[number]
    if not stage.is_split:
        groups = [(group, costs.stage_cost(stage, replica), "FIWB") for replica, group in enumerate(stage.replicas)]
    else:
        groups = [((part.device,), costs.part_cost(stage, part), part.kinds) for part in costs.parts(stage)]
    keeping = stage.keeping
    return [
        StageReplica(
            stage=number,
            replica=replica,
            group=group,
            cost=cost,
            kinds=kinds,
            kept_cost=None if keeping is None else costs.stage_cost(keeping, replica),
        )
        for replica, (group, cost, kinds) in enumerate(groups)
    ]


def _connect_split(
    plan: Plan, ends: tuple[list[StageReplica], list[StageReplica]], *, traffic: StageTraffic, costs: CostModel
) -> None:
    """Activations go between owners, gradients between the stage replicas that run I for the same samples."""
    problem = costs.problem
    stages = [plan.stages[replicas[0].stage] for replicas in ends]
    makers, takers = (replicas[: len(stage.replicas)] for replicas, stage in zip(ends, stages, strict=True))
    for i, j, share, whole in replica_overlaps(*stages):
        size = -(-traffic.forward_bytes * share // whole)
        makers[i].forward_to.append(_transfer(problem, makers[i], receiver=takers[j], num_bytes=size))
        takers[j].num_inputs += 1
    for taker in input_grad_ranges(stages[0]) if traffic.has_gradient else ():
        for maker in input_grad_ranges(stages[1]):
            if both := common(taker, maker):
                sender, receiver = ends[1][maker.number], ends[0][taker.number]
                size = part_of(both, traffic.backward_bytes)
                sender.backward_to.append(_transfer(problem, sender, receiver=receiver, num_bytes=size))
                receiver.num_gradients += 1


def _send_weights(plan: Plan, replicas: list[StageReplica], *, costs: CostModel) -> StageReplica:
    """With split placement: the weights go from the owner to every other I, once."""
    owner, *others = replicas
    sender = _idle(owner)
    for replica in others:
        if "I" in replica.kinds:
            size = costs.parameter_bytes(plan.stages[owner.stage])
            sender.forward_to.append(_transfer(costs.problem, sender, receiver=replica, num_bytes=size))
            replica.num_once += 1
    return sender


def _send_gradient(plan: Plan, replicas: list[StageReplica], *, costs: CostModel) -> dict[int, StageReplica]:
    """With split placement: the finished gradient goes from W to the owner, once."""
    owner, *others = replicas
    senders = [_idle(replica) for replica in others if "W" in replica.kinds]
    for sender in senders:
        size = costs.gradient_bytes(plan.stages[owner.stage])
        sender.backward_to.append(_transfer(costs.problem, sender, receiver=owner, num_bytes=size))
    return {sender.stage: sender for sender in senders}


def _connect_parts(plan: Plan, replicas: list[StageReplica], *, costs: CostModel) -> None:
    """With split placement: the stash goes from the owner to every other I, the weight stash from every I to W.

    W gets a stage replica of its own, since it waits for other arrivals than an I on the same device.
    """
    stage, owner = plan.stages[replicas[0].stage], replicas[0]
    parts, whole = costs.parts(stage), costs.stage_cost(stage, 0)
    base = next((replica for replica in replicas if "W" in replica.kinds), None)
    weight = None if base is None else replace(_idle(base), kinds="W", base=base)
    for part, replica in zip(parts, replicas, strict=True):
        if part.share and replica is not owner:
            size = part_of(part.share, whole.stash_bytes)
            owner.forward_to.append(_transfer(costs.problem, owner, receiver=replica, num_bytes=size))
            replica.num_inputs += 1
        if part.share and weight is not None and replica is not base:
            size = part_of(part.share, whole.weight_stash_bytes)
            replica.backward_to.append(_transfer(costs.problem, replica, receiver=weight, num_bytes=size))
            weight.num_gradients += 1
    if base is not None and weight is not None:
        base.kinds = base.kinds.replace("W", "")
        replicas.append(weight)


def _idle(replica: StageReplica) -> StageReplica:
    """A stage replica beside another one that runs nothing."""
    return StageReplica(stage=replica.stage, replica=replica.replica, group=replica.group, cost=replica.cost, kinds="")


def _transfer(problem: Problem, sender: StageReplica, *, receiver: StageReplica, num_bytes: int) -> ReplicaTransfer:
    """Transfers go between the first devices of the groups; inside one device nothing moves."""
    a, b = sender.group[0], receiver.group[0]
    return ReplicaTransfer(receiver, num_bytes, None if a == b else problem.cluster.route(a, b, num_bytes=num_bytes))


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
