"""V-Min (Qi et al., 2024, arXiv 2405.15362): two chunks in a V, about a third of the memory of 1F1B."""

from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.building_blocks import Block, order_by_block


def order_v_min(pipeline: Pipeline) -> DeviceOrders:
    """One slot from device to device down the V and up; about 2 D / 3 + 2 stashes of one chunk on every device."""
    return order_by_block(pipeline, _v_min_block(pipeline.num_positions))


def _v_min_block(devices: int) -> Block:
    """The published block; two more slots before the first I keep the slots of a multiple of three devices apart."""
    wait = 2 if devices % 3 == 0 else 0
    return tuple((d, 2 * devices - 1 - d, 2 * devices + wait + d, 4 * devices - 1 + wait - d) for d in range(devices))
