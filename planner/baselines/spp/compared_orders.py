"""The orders that SPP compares: by slots, with a bound on the makespan, and greedy, first in first out, without one."""

from planner.actions import Action
from planner.baselines.alternation import fused_backward
from planner.baselines.encoded_orders import order_by_rule
from planner.baselines.pipeline import DeviceOrders, Pipeline
from solver_models.simulation.preferences import AS_READY


def order_slotted(pipeline: Pipeline) -> DeviceOrders:
    """Every stage goes by slot = microbatch + number of the block, the backward block first inside a slot.

    A microbatch is a chain of 4 S - 3 blocks: F and transfer in turn, F and B of the last stage as one block, transfer
    and B in turn. One microbatch is never longer than C on a resource, so that the order takes at most
    (M + 4 S - 4) C, plus the longest all-reduce, on links that no two channels share.
    """
    last, count = pipeline.num_stages - 1, pipeline.num_microbatches
    device_orders: DeviceOrders = []
    for stage in range(last):
        backward = [(m + 4 * last - 2 * stage, 0, fused_backward(pipeline, stage, microbatch=m)) for m in range(count)]
        forward = [(m + 2 * stage, 1, Action("F", stage, m)) for m in range(count)]
        device_orders.append([action for *_, action in sorted(backward + forward)])
    merged = [(Action("F", last, m), fused_backward(pipeline, last, microbatch=m)) for m in range(count)]
    device_orders.append([action for block in merged for action in block])
    return device_orders


def order_greedy(pipeline: Pipeline) -> DeviceOrders:
    """Every stage runs what has waited longest, backwards first; channels send one thing at a time."""
    return order_by_rule(pipeline, kinds=AS_READY, splits=False)
