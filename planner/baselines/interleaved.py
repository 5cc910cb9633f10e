"""Interleaved 1F1B (Megatron-LM, Narayanan et al., 2021, arXiv 2104.04473): several chunks per device."""

from planner.actions import Action
from planner.baselines.alternation import alternate, fused_backward
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_interleaved(pipeline: Pipeline, *, splits: bool = False) -> DeviceOrders:
    """D microbatches go through a device's first chunk, then the same D through its next, and so on, 1F1B.

    With v chunks device d runs 2 (D - d - 1) + (v - 1) D + 1 forwards before its first backward. With `splits` the same
    F and I without the W, for those who put W in afterwards. Raises
    DoesNotApplyError if the number of microbatches is not a multiple of the number of devices, as published.
    """
    devices, count = pipeline.num_positions, pipeline.num_microbatches
    if count % devices:
        raise DoesNotApplyError(f"{count} microbatches are not a multiple of {devices} devices")

    def backward(stage: int, microbatch: int) -> Action:
        return Action("I", stage, microbatch) if splits else fused_backward(pipeline, stage, microbatch=microbatch)

    return [
        alternate(
            [Action("F", device + chunk * pipeline.num_positions, m) for chunk, m in _rounds(pipeline)],
            [[backward(stage, m)] for stage, m in _returns(pipeline, device)],
            num_ahead=2 * (devices - device - 1) + pipeline.num_stages - devices + 1,
        )
        for device in range(devices)
    ]


def _returns(pipeline: Pipeline, device: int) -> list[tuple[int, int]]:
    devices, last = pipeline.num_positions, pipeline.num_stages // pipeline.num_positions - 1
    return [(device + (last - chunk) * devices, m) for chunk, m in _rounds(pipeline)]


def _rounds(pipeline: Pipeline) -> list[tuple[int, int]]:
    """(chunk, microbatch) in the order in which they come up."""
    devices = pipeline.num_positions
    return [
        (chunk, microbatch)
        for start in range(0, pipeline.num_microbatches, devices)
        for chunk in range(pipeline.num_stages // devices)
        for microbatch in range(start, start + devices)
    ]
