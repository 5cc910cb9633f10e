"""Reverse first-k from iteration to iteration: a layer's next forward starts once its own gradient is synchronised."""

from dataclasses import dataclass

from planner.baselines.out_of_order.first_k import backward_order
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out_stages
from planner.plan import Stage


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
