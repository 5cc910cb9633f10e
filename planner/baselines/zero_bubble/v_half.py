"""V-Half (Qi et al., 2024, arXiv 2405.15362): two chunks in a V, about half the memory of 1F1B."""

from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.building_blocks import Block, order_by_block


def order_v_half(pipeline: Pipeline) -> DeviceOrders:
    """Two slots from device to device down the V, one up; D + 2 stashes of one chunk on every device."""
    return order_by_block(pipeline, _v_half_block(pipeline.num_positions))


def _v_half_block(devices: int) -> Block:
    """The published block; three more slots before the first I keep the slots of an even number of devices apart."""
    wait = 3 if devices % 2 == 0 else 0
    return tuple(
        (2 * d, 3 * devices - 2 - d, 3 * devices - 1 + wait + 2 * d, 6 * devices - 2 + wait - d) for d in range(devices)
    )
