"""Gradients of a layer under `fully_shard` that came outside of its backward; private to torch 2.13 to 2.15."""

from typing import Any, cast

from torch.distributed.fsdp import FSDPModule

from planner.execute.torch_versions.supported import torch_version


def reduce_now(layer: FSDPModule) -> None:
    """Add up over the replicas what the layer's parameters have by now; torch's pipelines do so after the last W."""
    state = cast(Any, layer)._get_fsdp_state()
    if torch_version() >= (2, 15):  # which asks how a backward ends when one begins, and this is none
        state._state_ctx.manual_backward_finalization_active = False
    state._root_post_backward_final_callback()
