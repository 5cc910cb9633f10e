"""What a layer under `fully_shard` does before or outside of its own passes; private to torch 2.13 to 2.15."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from planner.execute.torch_versions.supported import torch_version

_Post: Any = _fsdp_param_group.RegisterPostBackwardFunction


class _PassingNone(_Post):  # type: ignore[misc]
    """What a layer's inputs go through: torch would give those that nothing used gradients of zeros."""

    @staticmethod
    def setup_context(ctx: Any, *given: Any) -> None:
        _Post.setup_context(ctx, *given)
        ctx.set_materialize_grads(False)


cast(Any, _fsdp_param_group).RegisterPostBackwardFunction = _PassingNone


def make_ready(layer: FSDPModule) -> None:
    """Let the layer be gathered before its first forward."""
    cast(Any, layer)._get_fsdp_state()._lazy_init()


def reduce_now(layer: FSDPModule) -> None:
    """Add up over the replicas what the layer's parameters have by now; torch's pipelines do so after the last W."""
    state = cast(Any, layer)._get_fsdp_state()
    if torch_version() >= (2, 15):  # which asks how a backward ends when one begins, and this is none
        state._state_ctx.manual_backward_finalization_active = False
    state._root_post_backward_final_callback()


def watch_used(layer: FSDPModule, note: Callable[[nn.Parameter], None]) -> None:
    """Call `note` with every parameter of the layer that a backward gave a gradient, before torch adds them up: those
    without one are given zeros there.
    """
    state = cast(Any, layer)._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:
        group.post_backward = partial(_note_used, group, post_backward=group.post_backward, note=note)


def _note_used(
    group: Any, *rest: Any, post_backward: Callable[..., None], note: Callable[[nn.Parameter], None]
) -> None:
    for each in group.fsdp_params:
        whole: Any = getattr(each, "_unsharded_param", None)
        grad = None if whole is None else whole.grad
        if grad is not None and grad.is_sparse:
            whole.grad = grad.to_dense()  # which is all that torch adds up
        if grad is not None or each.unsharded_accumulated_grad is not None:
            note(each.sharded_param)
    post_backward(*rest)
