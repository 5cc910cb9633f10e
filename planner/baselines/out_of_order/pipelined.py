"""Out-of-order backprop in a pipeline: output gradients run ahead of weight gradients; layers are dealt out in turn."""

from planner.baselines.applicability import (
    DoesNotApplyError,
    require_choices,
    require_few_actions,
    require_split_backward,
)
from planner.baselines.encoded_orders import order_by_rule
from planner.baselines.layouts import GIVEN, ONE_EACH, SMALLEST_LARGEST, make_stages
from planner.baselines.partitions import cut_at
from planner.baselines.pipeline import DeviceOrders, Pipeline, make_pipeline, make_plan
from planner.baselines.recomputing import with_recomputation
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.simulation.simulate import simulate
from solver_models.simulation.preferences import FORWARD_FIRST

MOST_CHUNKS = 16
"""Most stages per device that are tried."""


def order_fast_forward(pipeline: Pipeline) -> DeviceOrders:
    """Forwards before output gradients as in GPipe, and weight gradients only where nothing else can run."""
    return order_by_rule(pipeline, kinds=FORWARD_FIRST, splits=True)


def make_fast_forward_plan(costs: CostModel, *, recompute: bool = False, has_time: HasTime = always) -> Plan:
    """One stage per device, the largest as small as can be, in fast-forwarded order."""
    require_split_backward(costs.problem)
    cut = SMALLEST_LARGEST if costs.problem.options.partition is None else GIVEN
    stages = make_stages(costs, ONE_EACH, cut=cut)
    require_choices(costs, stages)
    require_few_actions(costs.problem, len(stages))
    return _order(costs, with_recomputation(stages) if recompute else stages, has_time=has_time)


def make_modulo_plan(
    costs: CostModel, *, mod: int | None = None, recompute: bool = False, has_time: HasTime = always
) -> Plan:
    """Layer l on device (l / mod) mod D, in fast-forwarded order; without `mod` the best that the options allow.

    Raises DoesNotApplyError if no such placement agrees with the options.
    """
    require_split_backward(costs.problem)
    if costs.problem.options.partition is not None:
        raise DoesNotApplyError("deals the layers out itself, and a partition is given")
    best: tuple[int, Plan] | None = None
    for each in group_sizes(costs) if mod is None else [mod]:
        stages = make_modulo_stages(costs, mod=each)
        require_choices(costs, stages)
        require_few_actions(costs.problem, len(stages))
        plan = _order(costs, with_recomputation(stages) if recompute else stages, has_time=has_time)
        played = simulate(costs.problem, plan, costs=costs).makespan_ns
        best = min(best or (played, plan), (played, plan), key=lambda pair: pair[0])
    if best is None:
        raise DoesNotApplyError("needs at least 2 stages per device")
    return best[1]


def group_sizes(costs: CostModel) -> list[int]:
    """Sizes of groups that give every device two stages or more, as many as the options allow; largest first."""
    num_layers, num_devices = len(costs.problem.profile.layers), len(costs.problem.cluster.devices)
    most = min(costs.problem.options.max_stages_per_device, MOST_CHUNKS, num_layers // num_devices)
    return list(dict.fromkeys(-(-num_layers // (chunks * num_devices)) for chunks in range(2, most + 1)))


def make_modulo_stages(costs: CostModel, *, mod: int) -> tuple[Stage, ...]:
    """Groups of `mod` layers along the topological order, dealt out to the devices in turn."""
    order = costs.problem.profile.topological_order
    names = [device.name for device in costs.problem.cluster.devices]
    groups = cut_at(order, [*range(0, len(order), mod), len(order)])
    return tuple(
        Stage(layers=layers, replicas=((names[number % len(names)],),)) for number, layers in enumerate(groups)
    )


def _order(costs: CostModel, stages: tuple[Stage, ...], *, has_time: HasTime) -> Plan:
    return make_plan(costs, stages, device_orders=order_fast_forward(make_pipeline(costs, stages, has_time=has_time)))
