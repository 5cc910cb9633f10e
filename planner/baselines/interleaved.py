"""Interleaved 1F1B (Megatron-LM, Narayanan et al., 2021, arXiv 2104.04473): two chunks per device."""

from planner.actions import Action
from planner.baselines.alternation import alternate, fused_backward
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.pipeline import Pipeline, Words


def order_interleaved(pipeline: Pipeline) -> Words:
    """D microbatches go through a device's first chunk, then the same D through its second, and so on, 1F1B.

    Device d runs 2 (D - d - 1) + D + 1 forwards before its first backward. Raises DoesNotApplyError if the number of
    microbatches is not a multiple of the number of devices, as published.
    """
    devices, count = pipeline.num_positions, pipeline.num_microbatches
    if count % devices:
        raise DoesNotApplyError(f"{count} microbatches are not a multiple of {devices} devices")
    return [_order_device(pipeline, device) for device in range(devices)]


def _order_device(pipeline: Pipeline, device: int) -> list[Action]:
    devices = pipeline.num_positions
    turns = [
        (chunk, microbatch)
        for start in range(0, pipeline.num_microbatches, devices)
        for chunk in (0, 1)
        for microbatch in range(start, start + devices)
    ]
    return alternate(
        [Action("F", device + chunk * devices, microbatch) for chunk, microbatch in turns],
        [[fused_backward(pipeline, device + (1 - chunk) * devices, microbatch=m)] for chunk, m in turns],
        num_ahead=2 * (devices - device - 1) + devices + 1,
    )
