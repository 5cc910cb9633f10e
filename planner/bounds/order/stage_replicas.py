"""The laid-out plan with the least that its stage replicas do and hold, whatever the order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.layout.costs import CostModel
from planner.layout.stage_replicas import Transfer, lay_out_stages
from planner.plan import Stage
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplica:
    """Costs, bytes and devices of one replica of a stage, for the schedule bound."""

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
    """Time from the last synchronisation to the makespan."""

    def on(self, device: str) -> list[int]:
        """Numbers of the stage replicas on a device, ascending."""
        return [number for number, replica in enumerate(self.replicas) if device in replica.devices]


def make_replicas(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> StageReplicas:
    """The stage replicas of the given stages; where microbatches may recompute or not, each with the least of both."""
    laid_out, devices = lay_out_stages(stages, costs=costs), problem.cluster.by_name
    replicas = []
    for each in laid_out.replicas:
        cost = costs.least_cost(stages[each.stage], each.replica)
        returning, rest = cost.least_parts_ns(can_split=problem.options.split_backward)
        room = (devices[device].usable_bytes - laid_out.static_bytes[device] for device in each.group)
        replicas.append(
            StageReplica(
                devices=each.group,
                forward=cost.forward_ns,
                returning=returning,
                rest=rest,
                held=cost.held_bytes,
                kept=cost.weight_stash_bytes,
                budgets=tuple(size - cost.workspace_bytes for size in room),
                synchronisation=laid_out.synchronisation_ns[each.stage],
            )
        )
    return connect(replicas, laid_out.transfers, optimizer_ns=laid_out.tail_ns)


def connect(replicas: Sequence[StageReplica], transfers: Sequence[Transfer], *, optimizer_ns: int) -> StageReplicas:
    """The stage replicas with what each waits for and sends."""
    inputs, outputs, gradients, returns = (tuple(list[Transfer]() for _ in replicas) for _ in range(4))
    at: dict[str, list[Transfer]] = {}
    for transfer in transfers:
        (returns if transfer.is_backward else outputs)[transfer.sender].append(transfer)
        (gradients if transfer.is_backward else inputs)[transfer.receiver].append(transfer)
        if transfer.links:
            for device in {replicas[number].devices[0] for number in (transfer.sender, transfer.receiver)}:
                at.setdefault(device, []).append(transfer)
    return StageReplicas(
        replicas=tuple(replicas), inputs=inputs, outputs=outputs, gradients=gradients, returns=returns,
        sent_or_received=at, optimizer_ns=optimizer_ns,
    )  # fmt: skip
