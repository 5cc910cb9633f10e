"""Stages on devices as stage replicas: one per replica, with their durations, their memory and the transfers between
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.layout.costs import CostModel, StageCost, StageTraffic, replica_overlaps
from planner.plan import Stage
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer per microbatch from one stage replica to another."""

    sender: int
    """The stage replica it leaves."""
    receiver: int
    """The stage replica that waits for it."""
    is_backward: bool
    """Whether it is a gradient."""
    duration: int
    """Nanoseconds on its route; 0 inside a group."""
    links: tuple[int, ...]
    """Links it occupies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplica:
    """One replica of one stage."""

    devices: tuple[str, ...]
    """Its group."""
    forward: int
    """F."""
    returning: int
    """The part of the backward pass before the gradient leaves, at least."""
    rest: int
    """The rest of the backward pass, at least; what B takes is the sum of both, and I and W take no less."""
    held: int
    """Bytes of a microbatch from F to I."""
    kept: int
    """Bytes of a microbatch from I to W."""
    budgets: tuple[int, ...]
    """Per device of the group: bytes left for stashes while F runs."""
    synchronisation: int
    """Time after the last action of the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplicas:
    """All stage replicas in stage order, and what flows between them."""

    replicas: tuple[StageReplica, ...]
    inputs: tuple[list[Transfer], ...]
    """Per stage replica: the activations it waits for."""
    outputs: tuple[list[Transfer], ...]
    """Per stage replica: the activations it sends."""
    gradients: tuple[list[Transfer], ...]
    """Per stage replica: the gradients it waits for."""
    returns: tuple[list[Transfer], ...]
    """Per stage replica: the gradients it sends."""
    sent_or_received: Mapping[str, list[Transfer]]
    """Per device that leads a group: the transfers that it sends or receives over links."""
    optimizer_ns: int
    """What follows the last synchronisation."""

    def on(self, device: str) -> list[int]:
        """The stage replicas on a device."""
        return [number for number, replica in enumerate(self.replicas) if device in replica.devices]


def make_replicas(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> StageReplicas:
    """The stage replicas of the given stages; where microbatches may recompute or not, each with the least of both."""
    static = costs.static_bytes(stages)
    replicas: list[StageReplica] = []
    first: list[int] = []
    for stage in stages:
        first.append(len(replicas))
        for replica, group in enumerate(stage.replicas):
            memory = [problem.cluster.by_name[device].usable_bytes - static[device] for device in group]
            cost = costs.least_cost(stage, replica)
            replicas.append(
                _make_replica(problem, group, cost=cost, memory=memory, tail=costs.synchronisation_ns(stage))
            )
    transfers = [
        transfer
        for (a, b), traffic in costs.traffic(stages).items()
        for transfer in _make_transfers(problem, stages, pair=(a, b), first=first, traffic=traffic)
    ]
    inputs: tuple[list[Transfer], ...] = tuple([] for _ in replicas)
    outputs: tuple[list[Transfer], ...] = tuple([] for _ in replicas)
    gradients: tuple[list[Transfer], ...] = tuple([] for _ in replicas)
    returns: tuple[list[Transfer], ...] = tuple([] for _ in replicas)
    for transfer in transfers:
        (returns if transfer.is_backward else outputs)[transfer.sender].append(transfer)
        (gradients if transfer.is_backward else inputs)[transfer.receiver].append(transfer)
    at: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        for device in (
            {replicas[number].devices[0] for number in (transfer.sender, transfer.receiver)} if transfer.links else ()
        ):
            at.setdefault(device, []).append(transfer)
    return StageReplicas(
        replicas=tuple(replicas),
        inputs=inputs,
        outputs=outputs,
        gradients=gradients,
        returns=returns,
        sent_or_received=at,
        optimizer_ns=costs.optimizer_ns(stages),
    )


def _make_replica(
    problem: Problem, group: tuple[str, ...], *, cost: StageCost, memory: list[int], tail: int
) -> StageReplica:
    backward = min(cost.backward_ns, cost.input_grad_ns + cost.weight_grad_ns)
    returning = (
        min(cost.input_grad_ns, backward) if problem.options.split_backward or not cost.has_weight_grad else backward
    )
    return StageReplica(
        devices=group,
        forward=cost.forward_ns,
        returning=returning,
        rest=backward - returning if cost.has_weight_grad else 0,
        held=cost.held_bytes,
        kept=cost.weight_stash_bytes,
        budgets=tuple(size - cost.workspace_bytes for size in memory),
        synchronisation=tail,
    )


def _make_transfers(
    problem: Problem, stages: tuple[Stage, ...], *, pair: tuple[int, int], first: list[int], traffic: StageTraffic
) -> list[Transfer]:
    """Every pair of replicas exchanges the overlap of its sample ranges."""
    transfers = []
    senders, receivers = (stages[number].replicas for number in pair)
    for i, j, share, whole in replica_overlaps(*(stages[number] for number in pair)):
        a, b = senders[i][0], receivers[j][0]
        ends = [(a, b, first[pair[0]] + i, first[pair[1]] + j, traffic.forward_bytes, False)]
        if traffic.has_gradient:
            ends.append((b, a, first[pair[1]] + j, first[pair[0]] + i, traffic.backward_bytes, True))
        for source, target, sender, receiver, size, is_backward in ends:
            part = -(-size * share // whole)
            route = None if source == target else problem.cluster.route(source, target, num_bytes=part)
            transfers.append(
                Transfer(
                    sender=sender,
                    receiver=receiver,
                    is_backward=is_backward,
                    duration=0 if route is None else route.duration_ns(part),
                    links=() if route is None else route.links,
                )
            )
    return transfers
