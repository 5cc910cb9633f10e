"""Gradients of a layer under `fully_shard` that came outside of its backward; private to torch 2.13."""

from typing import Any, cast

from torch.distributed.fsdp import FSDPModule


def reduce_now(layer: FSDPModule) -> None:
    """Add up over the replicas what the layer's parameters have by now; torch's pipelines do so after the last W."""
    cast(Any, layer)._get_fsdp_state()._root_post_backward_final_callback()
