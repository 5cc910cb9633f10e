"""Which layers may take random numbers: only these are given numbers of their own (5 microseconds)."""

from typing import Any

from torch import nn

from planner.execute.model.cut.cut_layer import CutLayer

_HOMES = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "batchnorm", "conv", "flatten", "linear", "normalization", "padding", "pixelshuffle", "pooling",
        "sparse", "upsampling",
    )
)  # fmt: skip
"""Where torch has its modules that take none, but for those below."""
_DRAWING = frozenset({nn.RReLU, nn.MultiheadAttention, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d})
_FUNCTIONS = frozenset({
    "add", "iadd", "mul", "sub", "truediv", "neg", "matmul", "getitem", "relu", "gelu", "silu", "tanh", "sigmoid",
    "softmax", "flatten", "reshape", "view", "permute", "transpose", "contiguous", "squeeze", "unsqueeze", "cat",
    "mean", "sum",
})  # fmt: skip
"""Names of functions that take none; others may."""


def may_draw(layer: nn.Module) -> bool:
    """Whether it may take random numbers: torch's own modules that do not are known, all others count as such."""
    kind = type(layer)
    if isinstance(layer, CutLayer):
        return any(
            may_draw(layer.get_submodule(step.call))
            if isinstance(step.call, str)
            else step.is_own_function or step.name not in _FUNCTIONS
            for step in layer.cut_steps
        )
    if layer._forward_hooks or layer._forward_pre_hooks:
        return True
    if kind is nn.Sequential:
        return any(map(may_draw, layer.children()))
    return kind.__module__ not in _HOMES or kind in _DRAWING or _is_replaced(layer)


def takes_none(loss: Any) -> bool:
    """Whether a loss is one of torch's, which take no random numbers."""
    function = getattr(loss, "user_loss", loss)
    home = getattr(function, "__module__", "")
    name = getattr(function, "__name__", type(function).__name__)
    return home == "torch.nn.functional" and (name.endswith("_loss") or name == "cross_entropy")


def _is_replaced(layer: nn.Module) -> bool:
    """Whether another program's function stands for its forward; that which notes what W computes does what it did."""
    forward = vars(layer).get("forward")
    return forward is not None and getattr(forward, "__module__", "") != "planner.execute.model.deferred"
