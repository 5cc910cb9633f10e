"""Out-of-order backprop in data parallelism: reverse first-k.

The weight gradients of the k layers nearest the input wait until all output gradients are there and then run in
ascending order, so that what the next forward needs first is synchronised first. In a plan the iteration ends for all
layers at once (contract, "Time"); there a reordering pays only where it fills the links earlier.
"""

from typing import Literal

from planner.actions import Action
from planner.baselines.alternation import fused_backward
from planner.baselines.applicability import (
    DoesNotApplyError,
    replicated_devices,
    require_choices,
    require_split_backward,
    require_time,
)
from planner.baselines.partitions import smallest_largest_stage
from planner.baselines.pipeline import Pipeline, make_pipeline, make_plan
from planner.baselines.recomputing import with_recomputation
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.simulation.simulate import simulate

Step = tuple[Literal["I", "W"], int]
"""Output gradient or weight gradient of a layer, layers numbered from the input."""


def backward_order(num_layers: int, k: int) -> list[Step]:
    """From the last layer down to layer k, I and W in turn; then the other I, then W of layers 0, 1 ... k - 1."""
    usual: list[Step] = [step for layer in range(num_layers - 1, k - 1, -1) for step in (("I", layer), ("W", layer))]
    ahead: list[Step] = [("I", layer) for layer in range(k - 1, -1, -1)]
    return [*usual, *ahead, *(("W", layer) for layer in range(k))]


def make_first_k_stages(costs: CostModel) -> tuple[Stage, ...]:
    """As many stages as a device may hold, each on every device that can take whole samples.

    A stage is a bucket of gradients.
    """
    problem = costs.problem
    names = replicated_devices(costs)
    count = min(problem.options.max_stages_per_device, len(problem.profile.layers))
    partition = problem.options.partition or smallest_largest_stage(costs, list(names[:1]) * count)
    return tuple(Stage(layers=layers, replicas=tuple((name,) for name in names)) for layers in partition)


def make_first_k_plan(
    costs: CostModel, *, k: int | None = None, recompute: bool = False, has_time: HasTime = always
) -> Plan:
    """Data parallelism with bucketed synchronisation; W of the first k stages wait in the last microbatch.

    Without `k` the best of all. Raises DoesNotApplyError if the options exclude it.
    """
    require_split_backward(costs.problem)
    if costs.problem.options.synchronisation != "bucketed":
        raise DoesNotApplyError("needs synchronisation = bucketed")
    if costs.problem.options.placement is not None:
        raise DoesNotApplyError("places every stage on all devices, and a placement is given")
    stages = make_first_k_stages(costs)
    stages = with_recomputation(stages) if recompute else stages
    require_choices(costs, stages)
    pipeline = make_pipeline(costs, stages)
    played = list[tuple[int, Plan]]()
    for each in range(len(stages) + 1) if k is None else [k]:
        require_time(has_time)
        plan = make_plan(costs, stages, device_orders=[_order_first_k(pipeline, each)])
        played.append((simulate(costs.problem, plan, costs=costs).makespan_ns, plan))
    return min(played, key=lambda pair: pair[0])[1]


def _order_first_k(pipeline: Pipeline, k: int) -> list[Action]:
    """Microbatch after microbatch; in the last one the backward goes as `backward_order` says."""
    last, stages = pipeline.num_microbatches - 1, range(pipeline.num_stages)
    device_order: list[Action] = []
    for microbatch in range(last + 1):
        device_order += [Action("F", stage, microbatch) for stage in stages]
        if microbatch < last:
            device_order += [fused_backward(pipeline, stage, microbatch=microbatch) for stage in reversed(stages)]
    steps = backward_order(pipeline.num_stages, k)
    return device_order + [
        Action(kind, stage, last) for kind, stage in steps if kind == "I" or pipeline.costs[stage].has_weight_grad
    ]
