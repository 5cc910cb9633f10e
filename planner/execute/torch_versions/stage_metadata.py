"""What torch's stages want to know about the tensors between them: nothing but ours since 2.12, buffers in 2.11."""

from typing import Any


def settle_metadata(stage: Any, num_microbatches: int) -> None:
    """What torch's own preparation does, but for its buffers."""
    stage.chunks = num_microbatches
    if hasattr(stage, "_user_meta"):
        stage._stage_meta.inputs, stage._stage_meta.outputs = stage._user_meta.inputs, stage._user_meta.outputs
    else:
        stage._validate_fwd_input = stage._validate_fwd_outputs = _look_away


def _look_away(*_: Any) -> None:
    """Torch 2.11 looks into its receive buffers, of which there are none; the shapes are checked in F by ourselves."""
