"""Orders that begin with some forwards and then take one forward and one backward in turn."""

from collections.abc import Sequence

from planner.actions import Action
from planner.baselines.pipeline import Pipeline


def alternate(forwards: Sequence[Action], backwards: Sequence[Sequence[Action]], *, num_ahead: int) -> list[Action]:
    """`num_ahead` forwards, then backward 0, forward, backward 1, forward, and so on to the last backward.

    An entry of `backwards` is whatever is run as one step: a B, or an I and a W. At least one forward comes first.
    """
    ahead = max(1, min(num_ahead, len(forwards)))
    device_order = list(forwards[: ahead - 1])
    for number, step in enumerate(backwards):
        device_order.extend(forwards[ahead - 1 + number : ahead + number])
        device_order.extend(step)
    return device_order


def forward_steps(pipeline: Pipeline, stage: int) -> list[Action]:
    """F of all microbatches in order."""
    return [Action("F", stage, microbatch) for microbatch in range(pipeline.num_microbatches)]


def fused_steps(pipeline: Pipeline, stage: int) -> list[list[Action]]:
    """Every backward of a stage in one call: B, or I where there is no W."""
    return [[fused_backward(pipeline, stage, microbatch=m)] for m in range(pipeline.num_microbatches)]


def fused_backward(pipeline: Pipeline, stage: int, *, microbatch: int) -> Action:
    """B, or I where the stage has no W."""
    return Action("B" if pipeline.costs[stage].has_weight_grad else "I", stage, microbatch)


def split_steps(pipeline: Pipeline, stage: int, *, deferral: int) -> list[list[Action]]:
    """Every I of a stage, each followed by the W of `deferral` microbatches before; the W left over at the end."""
    count = pipeline.num_microbatches
    steps = [[Action("I", stage, microbatch)] for microbatch in range(count)]
    if pipeline.costs[stage].has_weight_grad:
        for microbatch in range(count):
            steps[min(microbatch + deferral, count - 1)].append(Action("W", stage, microbatch))
    return steps
