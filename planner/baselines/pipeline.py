"""What a scheduling method sees of a problem whose stages are placed: costs, delays and budgets by number."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.actions import Action
from planner.clock import HasTime, always
from planner.layout.costs import CostModel, StageCost
from planner.plan import DeviceGroup, Plan, Stage

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
    budgets: tuple[int, ...]
    """Bytes per position that stashes may take."""
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
        return len(self.budgets)

    def total_ns(self, stage: int) -> int:
        """Time of one microbatch in a stage, backward split."""
        cost = self.costs[stage]
        return cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns


def make_pipeline(costs: CostModel, stages: Sequence[Stage], *, has_time: HasTime = always) -> Pipeline:
    """The pipeline of placed stages; stages with the same replicas share a position."""
    problem = costs.problem
    positions = {replicas: number for number, replicas in enumerate(dict.fromkeys(s.replicas for s in stages))}
    position_of = tuple(positions[stage.replicas] for stage in stages)
    slowest = tuple(_slowest(costs, stage) for stage in stages)
    activations, gradients = _transfers(costs, stages)
    return Pipeline(
        num_microbatches=problem.num_microbatches,
        position_of=position_of,
        costs=slowest,
        activations_to=activations,
        gradients_to=gradients,
        budgets=_budgets(costs, stages),
        minimises_span=problem.options.objective == "span",
        has_time=has_time,
    )


def make_plan(costs: CostModel, stages: tuple[Stage, ...], *, device_orders: DeviceOrders) -> Plan:
    """The plan in which every device runs the device order of its position."""
    positions: dict[tuple[DeviceGroup, ...], int] = {}
    for stage in stages:
        positions.setdefault(stage.replicas, len(positions))
    orders = [tuple(device_order) for device_order in device_orders]
    schedule = {
        device: orders[position] for replicas, position in positions.items() for group in replicas for device in group
    }
    return Plan(problem=costs.problem.reference(), stages=stages, schedule=schedule)


def _slowest(costs: CostModel, stage: Stage) -> StageCost:
    every = [costs.stage_cost(stage, replica) for replica in range(len(stage.replicas))]
    return max(every, key=lambda cost: cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns)


def _transfers(costs: CostModel, stages: Sequence[Stage]) -> tuple[tuple[Transfers, ...], tuple[Transfers, ...]]:
    """Delays between the first devices of stages, as if every transfer had its links to itself."""
    activations: list[list[tuple[int, int]]] = [[] for _ in stages]
    gradients: list[list[tuple[int, int]]] = [[] for _ in stages]
    for (a, b), traffic in costs.traffic(stages).items():
        activations[a].append((b, _delay_ns(costs, (stages[a], stages[b]), num_bytes=traffic.forward_bytes)))
        if traffic.has_gradient:
            gradients[b].append((a, _delay_ns(costs, (stages[b], stages[a]), num_bytes=traffic.backward_bytes)))
    return tuple(map(tuple, activations)), tuple(map(tuple, gradients))


def _delay_ns(costs: CostModel, ends: tuple[Stage, Stage], *, num_bytes: int) -> int:
    source, target = ends[0].replicas[0][0], ends[1].replicas[0][0]
    if source == target:
        return 0
    share = -(-num_bytes // max(len(ends[0].replicas), len(ends[1].replicas)))
    return costs.problem.cluster.route(source, target, num_bytes=share).duration_ns(share)


def _budgets(costs: CostModel, stages: Sequence[Stage]) -> tuple[int, ...]:
    """Memory less what is resident and what a running action needs, of the tightest device at every position."""
    static = costs.static_bytes(stages)
    workspace: dict[tuple[DeviceGroup, ...], int] = {}
    for stage in stages:
        needed = costs.stage_cost(stage, 0).workspace_bytes
        workspace[stage.replicas] = max(needed, workspace.get(stage.replicas, 0))
    memory = {device.name: device.usable_bytes for device in costs.problem.cluster.devices}
    return tuple(
        min(memory[device] - static[device] for group in replicas for device in group) - needed
        for replicas, needed in workspace.items()
    )
