"""Orders that begin with some forwards and then take one forward and one backward in turn."""

from collections.abc import Sequence

from planner.actions import Action
from planner.baselines.pipeline import DeviceOrders, Pipeline


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


def order_gpipe(pipeline: Pipeline) -> DeviceOrders:
    """GPipe (Huang et al., 2019, arXiv 1811.06965): every stage runs F0 F1 F2 ... B0 B1 B2 ...

    The paper draws the backwards in reverse, the times are the same.
    """
    return [
        alternate(forward_steps(pipeline, stage), fused_steps(pipeline, stage), num_ahead=pipeline.num_microbatches)
        for stage in range(pipeline.num_stages)
    ]


def order_one_f_one_b(pipeline: Pipeline) -> DeviceOrders:
    """1F1B (PipeDream-Flush, Narayanan et al., 2021, arXiv 2006.09503): as early as possible.

    Stage s of S runs S - s forwards before its first backward, then alternates.
    """
    return [
        alternate(forward_steps(pipeline, stage), fused_steps(pipeline, stage), num_ahead=pipeline.num_stages - stage)
        for stage in range(pipeline.num_stages)
    ]


def order_zb_h(pipeline: Pipeline, *, number: int) -> DeviceOrders:
    """ZB-H1 or ZB-H2 (Qi et al., 2024, arXiv 2401.10241, section 2): 1F1B with W deferred.

    Stage s of S runs n (S - s) - n + 1 forwards ahead and keeps n s W back, so that all hold n S - n + 1 microbatches:
    H1 keeps to the memory of 1F1B, and H2 has no bubble but the fill, in twice that memory.
    """
    return [
        alternate(
            forward_steps(pipeline, stage),
            split_steps(pipeline, stage, deferral=number * stage),
            num_ahead=number * (pipeline.num_stages - stage - 1) + 1,
        )
        for stage in range(pipeline.num_stages)
    ]
