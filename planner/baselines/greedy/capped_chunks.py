"""The greedy order under caps with several chunks per device, in a loop or in a zigzag (a V has two)."""

from collections.abc import Iterator

from planner.baselines.greedy.capped_orders import Rule, best_capped, caps_within, largest_slope, room_for
from planner.baselines.pipeline import DeviceOrders, Pipeline

STEPS = 24
"""Caps are looked for in steps of one part in so many of the stages that are left."""


def order_capped_chunks(pipeline: Pipeline) -> DeviceOrders:
    """I and W apart; the caps that just fit, halfway between them and those of 1F1B, and memory alone."""
    return best_capped(pipeline, _rules(pipeline, splits=True))


def order_capped_whole_chunks(pipeline: Pipeline) -> DeviceOrders:
    """The same with whole backward passes."""
    return best_capped(pipeline, _rules(pipeline, splits=False))


def _rules(pipeline: Pipeline, *, splits: bool) -> Iterator[Rule]:
    slope = largest_slope(pipeline, steps=STEPS)
    chunks = pipeline.num_stages // pipeline.num_positions
    slopes = dict.fromkeys((min(slope, 2 * STEPS), max(1, STEPS // chunks), (slope + STEPS) // 2))
    for numerator in slopes:
        caps = caps_within(pipeline, numerator, denominator=STEPS)
        yield Rule(caps=caps, splits=splits)
        yield Rule(caps=caps, chunks="turns", splits=splits)
    yield Rule(caps=room_for(pipeline), chunks="oldest", splits=splits)
    yield Rule(caps=caps_within(pipeline, slope, denominator=STEPS), splits=splits, most_pending=0)
