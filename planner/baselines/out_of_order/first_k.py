"""Out-of-order backprop in data parallelism: reverse first-k.

The weight gradients of the k layers nearest the input wait until all output gradients are there and then run in
ascending order, so that what the next forward needs first is synchronised first. `period_ns` plays that with the wait
per layer: a layer's next forward starts once its own gradient is synchronised. In a plan the iteration ends for all
layers at once (contract, "Time"); there a reordering pays only where it fills the links earlier.
"""

from dataclasses import dataclass
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
from planner.layout.stage_replicas import lay_out_stages
from planner.plan import Plan, Stage
from planner.simulation.simulate import simulate

Step = tuple[Literal["I", "W"], int]
"""Output gradient or weight gradient of a layer, layers numbered from the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What the layers cost on every replica, and what their gradients cost on the links."""

    forward_ns: tuple[int, ...]
    input_grad_ns: tuple[int, ...]
    weight_grad_ns: tuple[int, ...]
    synchronisation_ns: tuple[int, ...]
    """All-reduce of the layer's gradient; 0: it has none."""

    def __post_init__(self) -> None:
        counts = {len(times) for times in (self.forward_ns, self.input_grad_ns, self.weight_grad_ns)}
        if counts != {len(self.synchronisation_ns)}:
            raise ValueError(
                f"layer times: lengths {sorted(counts)} and {len(self.synchronisation_ns)} differ; give one per layer"
            )


def backward_order(num_layers: int, k: int) -> list[Step]:
    """From the last layer down to layer k, I and W in turn; then the other I, then W of layers 0, 1 ... k - 1."""
    usual: list[Step] = [step for layer in range(num_layers - 1, k - 1, -1) for step in (("I", layer), ("W", layer))]
    ahead: list[Step] = [("I", layer) for layer in range(k - 1, -1, -1)]
    return [*usual, *ahead, *(("W", layer) for layer in range(k))]


def period_ns(times: LayerTimes, k: int, *, buckets: list[int] | None = None) -> int:
    """From the start of one backward to the end of the next forward, every layer waiting for its own gradient only.

    Buckets queue on the links in the order in which their last weight gradient ends; all have been sent when the next
    forward ends, so that this is the period of the steady state. Without `buckets` each layer is one.
    """
    count = len(times.forward_ns)
    bucket_of = list(range(count)) if buckets is None else buckets
    left = [bucket_of.count(bucket) for bucket in range(bucket_of[-1] + 1)]
    cost = [0] * len(left)
    for layer, bucket in enumerate(bucket_of):
        cost[bucket] += times.synchronisation_ns[layer]
    now, link, synchronised = 0, 0, [0] * len(left)
    for kind, layer in backward_order(count, k):
        now += (times.input_grad_ns if kind == "I" else times.weight_grad_ns)[layer]
        if kind == "W":
            bucket = bucket_of[layer]
            left[bucket] -= 1
            if left[bucket] == 0:
                synchronised[bucket] = link = max(now, link) + cost[bucket] if cost[bucket] else now
    for layer in range(count):
        now = max(now, synchronised[bucket_of[layer]]) + times.forward_ns[layer]
    return now


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


def times_of(costs: CostModel, stages: tuple[Stage, ...]) -> LayerTimes:
    """The times of stages that are on every device."""
    laid_out = lay_out_stages(stages, costs=costs)
    works = [each.cost for each in laid_out.replicas if each.replica == 0]
    return LayerTimes(
        forward_ns=tuple(work.forward_ns for work in works),
        input_grad_ns=tuple(work.input_grad_ns for work in works),
        weight_grad_ns=tuple(work.weight_grad_ns for work in works),
        synchronisation_ns=laid_out.synchronisation_ns,
    )
