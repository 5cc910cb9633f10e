"""ZB-V (Qi et al., 2024, arXiv 2401.10241, section 6; 2405.15362): two chunks in a V, within the memory of 1F1B."""

from collections import Counter
from typing import NamedTuple

from planner.actions import Action, Kind
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.weight_grads import Habit, best_filled

HABITS = (
    Habit(quarters=4, at_once=True),
    Habit(quarters=3),
    Habit(quarters=2),
)
"""How W are put in; each is tried."""


def order_zb_v(pipeline: Pipeline) -> DeviceOrders:
    """F and I as for equal times, W where the measured times leave room, stashes within those of 1F1B."""
    orders = [_order_device(pipeline, device) for device in range(pipeline.num_positions)]
    return best_filled(pipeline, ((orders, habit) for habit in HABITS), limits=_limits(pipeline))


def _limits(pipeline: Pipeline) -> list[int]:
    """As many microbatches on both chunks as there are devices, and no more than the memory holds."""
    pair = [0] * pipeline.num_positions
    for stage, cost in enumerate(pipeline.costs):
        pair[pipeline.position_of[stage]] += cost.held_bytes
    return [min(device.memory, len(pair) * held) for device, held in zip(pipeline.devices, pair, strict=True)]


def _order_device(pipeline: Pipeline, device: int) -> list[Action]:
    """F and I of device d of D, whose stages are a = d and b = 2 D - 1 - d, in the phases of the paper's drawing.

    Fewer microbatches than 2 D - 1 are taken out of the order for 2 D - 1.
    """
    devices = pipeline.num_positions
    fa, fb = _Step("F", device), _Step("F", 2 * devices - 1 - device)
    ia, ib = _Step("I", fa.stage), _Step("I", fb.stage)
    count = max(pipeline.num_microbatches, 2 * devices - 1)
    steps = (
        [fa] * (2 * (devices - device) - 1)  # until microbatch 0 comes back down the V
        + [fb, fa] * device  # until its gradient comes
        + [fb, ib] * (devices - device)  # until its gradient comes back down the V
        + [fa, ia, fb, ib] * (count - devices)  # steady; the forwards of a end first
        + [ia, ib] * device
        + [ia] * (devices - device)
    )
    return _number(steps, pipeline.num_microbatches)


class _Step(NamedTuple):
    kind: Kind
    stage: int


def _number(steps: list[_Step], num_microbatches: int) -> list[Action]:
    """The k-th occurrence of a step is that of microbatch k; occurrences beyond the last microbatch are left out."""
    seen: Counter[_Step] = Counter()
    device_order = []
    for step in steps:
        if seen[step] < num_microbatches:
            device_order.append(Action(step.kind, step.stage, seen[step]))
        seen[step] += 1
    return device_order
