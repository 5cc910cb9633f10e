"""Interleaved 1F1B (Megatron-LM, Narayanan et al., 2021, arXiv 2104.04473): several chunks per device."""

from planner.actions import Action
from planner.baselines.alternation import alternate, fused_backward
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_interleaved(pipeline: Pipeline) -> DeviceOrders:
    """D microbatches go through a device's first chunk, then the same D through its next, and so on, 1F1B.

    With v chunks device d runs 2 (D - d - 1) + (v - 1) D + 1 forwards before its first backward. Raises
    DoesNotApplyError if the number of microbatches is not a multiple of the number of devices, as published.
    """
    _require_full_rounds(pipeline)
    return [
        alternate(
            _forwards(pipeline, device),
            [[fused_backward(pipeline, stage, microbatch=m)] for stage, m in _returns(pipeline, device)],
            num_ahead=_num_ahead(pipeline, device),
        )
        for device in range(pipeline.num_positions)
    ]


def order_split_interleaved(pipeline: Pipeline) -> DeviceOrders:
    """The same F and I without the W, for those who put W in afterwards."""
    _require_full_rounds(pipeline)
    return [
        alternate(
            _forwards(pipeline, device),
            [[Action("I", stage, m)] for stage, m in _returns(pipeline, device)],
            num_ahead=_num_ahead(pipeline, device),
        )
        for device in range(pipeline.num_positions)
    ]


def _require_full_rounds(pipeline: Pipeline) -> None:
    """Raise DoesNotApplyError unless the microbatches are a multiple of the devices."""
    devices, count = pipeline.num_positions, pipeline.num_microbatches
    if count % devices:
        raise DoesNotApplyError(f"{count} microbatches are not a multiple of {devices} devices")


def _num_ahead(pipeline: Pipeline, device: int) -> int:
    devices, chunks = pipeline.num_positions, pipeline.num_stages // pipeline.num_positions
    return 2 * (devices - device - 1) + (chunks - 1) * devices + 1


def _forwards(pipeline: Pipeline, device: int) -> list[Action]:
    return [Action("F", device + chunk * pipeline.num_positions, m) for chunk, m in _rounds(pipeline)]


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
