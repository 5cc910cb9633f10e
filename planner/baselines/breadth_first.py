"""Breadth-first pipelines (Lamy-Poirier, 2023, arXiv 2211.05953): all microbatches through one chunk, then the next."""

from planner.actions import Action
from planner.baselines.alternation import fused_backward
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_breadth_first(pipeline: Pipeline) -> DeviceOrders:
    """Every device runs all F of its first chunk, of its second, and so on, then all B, the last chunk first."""
    device_orders: DeviceOrders = [[] for _ in range(pipeline.num_positions)]
    for stage in range(pipeline.num_stages):
        device_orders[pipeline.position_of[stage]] += [Action("F", stage, m) for m in range(pipeline.num_microbatches)]
    for stage in reversed(range(pipeline.num_stages)):
        device_orders[pipeline.position_of[stage]] += [
            fused_backward(pipeline, stage, microbatch=m) for m in range(pipeline.num_microbatches)
        ]
    return device_orders
