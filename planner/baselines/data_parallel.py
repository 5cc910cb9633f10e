"""Pure data parallelism: the whole model on every device, gradients synchronised at the end of the iteration."""

from planner.actions import Action
from planner.baselines.alternation import fused_backward
from planner.baselines.applicability import DoesNotApplyError, replicated_devices
from planner.baselines.pipeline import DeviceOrders, Pipeline, make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage


def make_replicated_stage(costs: CostModel) -> tuple[Stage, ...]:
    """One stage, replicated on every device that can take whole samples (or as its placement is given)."""
    options = costs.problem.options
    layers = costs.problem.profile.topological_order
    if options.partition is not None and len(options.partition) != 1:
        raise DoesNotApplyError(f"the given partition has {len(options.partition)} stages, the method 1")
    if options.placement is not None:
        return (Stage(layers=layers, replicas=options.placement[0]),)
    return (Stage(layers=layers, replicas=tuple((name,) for name in replicated_devices(costs))),)


def make_single_stage_plan(costs: CostModel, stages: tuple[Stage, ...]) -> Plan:
    """The plan of one stage, every replica of which runs that order."""
    return make_plan(costs, stages, device_orders=order_data_parallel(make_pipeline(costs, stages)))


def order_data_parallel(pipeline: Pipeline) -> DeviceOrders:
    """Forward and backward of one microbatch after the other: F0 B0 F1 B1 F2 B2."""
    device_order: list[Action] = []
    for microbatch in range(pipeline.num_microbatches):
        device_order += [Action("F", 0, microbatch), fused_backward(pipeline, 0, microbatch=microbatch)]
    return [device_order]
