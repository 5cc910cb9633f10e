"""What a scheduling method sees of a problem whose stages are placed: costs, delays and budgets by number."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.actions import Action
from planner.clock import HasTime, always
from planner.layout.costs import CostModel, StageCost
from planner.layout.device_groups import device_rows
from planner.layout.stage_replicas import LaidOut, lay_out_stages
from planner.plan import Plan, Stage
from solver_models.device_rows import DeviceRow, as_one

DeviceOrders = list[list[Action]]
"""The order of actions on every device position."""

Transfers = tuple[tuple[int, int], ...]
"""Where something is sent: (stage, delay in nanoseconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages on device positions 0, 1, 2 ...; all replicas and members of a group stand at one position."""

    num_microbatches: int
    """Microbatches per iteration."""
    position_of: tuple[int, ...]
    """Device position of every stage."""
    costs: tuple[StageCost, ...]
    """Cost of every stage, on its slowest replica."""
    activations_to: tuple[Transfers, ...]
    """Per stage, the stages that read its output."""
    gradients_to: tuple[Transfers, ...]
    """Per stage, the stages that wait for its input gradient."""
    devices: tuple[DeviceRow, ...]
    """Per position, its devices as one, with the bytes that stashes may take."""
    minimises_span: bool
    """Whether the span is minimised, not the makespan."""
    has_time: HasTime = field(default=always, compare=False)
    """Whether a method that tries many orders may try another one."""
    original: "Pipeline | None" = field(default=None, compare=False)
    """Of an idealised twin: the pipeline whose orders are looked for."""

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return len(self.costs)

    @property
    def num_positions(self) -> int:
        """Device positions."""
        return len(self.devices)

    def rank_of(self, makespan: int, span: int) -> tuple[int, int]:
        """What orders are compared by: the time that is minimised, then the other one."""
        return (span, makespan) if self.minimises_span else (makespan, span)

    def total_ns(self, stage: int) -> int:
        """Time of one microbatch in a stage, backward split."""
        cost = self.costs[stage]
        return cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns


def make_pipeline(costs: CostModel, stages: Sequence[Stage], *, has_time: HasTime = always) -> Pipeline:
    """The pipeline of placed stages; stages with the same replicas share a position."""
    problem, laid_out = costs.problem, lay_out_stages(stages, costs=costs)
    positions = {replicas: number for number, replicas in enumerate(dict.fromkeys(s.replicas for s in stages))}
    position_of = tuple(positions[stage.replicas] for stage in stages)
    by_stage = [[each.cost for each in laid_out.replicas if each.stage == number] for number in range(len(stages))]
    activations, gradients = _transfers(laid_out, num_stages=len(stages))
    workspace, rows = [0] * len(positions), device_rows(problem.cluster)
    for position, own in zip(position_of, by_stage, strict=True):
        workspace[position] = max(workspace[position], own[0].workspace_bytes)
    return Pipeline(
        num_microbatches=problem.num_microbatches,
        position_of=position_of,
        costs=tuple(
            max(own, key=lambda cost: cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns) for own in by_stage
        ),
        activations_to=activations,
        gradients_to=gradients,
        devices=tuple(
            as_one(
                [rows[device].placed(laid_out.static_bytes[device]) for group in replicas for device in group]
            ).placed(needed)
            for replicas, needed in zip(positions, workspace, strict=True)
        ),
        minimises_span=problem.options.ranked_by == "span",
        has_time=has_time,
    )


def make_plan(costs: CostModel, stages: tuple[Stage, ...], *, device_orders: DeviceOrders) -> Plan:
    """The plan in which every device runs the device order of its position."""
    positions = dict(zip(dict.fromkeys(stage.replicas for stage in stages), map(tuple, device_orders), strict=True))
    schedule = {device: order for replicas, order in positions.items() for group in replicas for device in group}
    return Plan(problem=costs.problem.reference(), stages=stages, schedule=schedule)


def _transfers(laid_out: LaidOut, *, num_stages: int) -> tuple[tuple[Transfers, ...], tuple[Transfers, ...]]:
    """Delays between the first replicas of stages, as if every transfer had its links to itself."""
    found: tuple[list[list[tuple[int, int]]], ...] = ([[] for _ in range(num_stages)], [[] for _ in range(num_stages)])
    for sent in laid_out.transfers:
        ends = laid_out.replicas[sent.sender], laid_out.replicas[sent.receiver]
        if not any(end.replica for end in ends):
            found[sent.is_backward][ends[0].stage].append((ends[1].stage, sent.ticks))
    activations, gradients = (tuple(map(tuple, each)) for each in found)
    return activations, gradients
