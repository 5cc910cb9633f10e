"""Interleaved zero-bubble: the F and I of interleaved 1F1B, W where the measured times leave room.

torch has such a schedule for any number of chunks (`ScheduleInterleavedZeroBubble`); here W go by cost and memory.
"""

from planner.baselines.interleaved import order_interleaved
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.weight_grads import Habit, best_filled

HABITS = (Habit(quarters=4, evens_out=True), Habit(quarters=4, at_once=True), Habit(quarters=2))
"""How W are put in; each is tried."""


def order_zb_interleaved(pipeline: Pipeline) -> DeviceOrders:
    """The best of a few habits; raises DoesNotApplyError where interleaved 1F1B does not exist."""
    orders = order_interleaved(pipeline, splits=True)
    return best_filled(pipeline, ((orders, habit) for habit in HABITS), limits=[row.memory for row in pipeline.devices])
