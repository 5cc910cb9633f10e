"""Whether what a layer gives of a sample depends on how a batch is cut: on other samples beside it, or before it."""

from contextlib import suppress

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from profiles.measure.model import Tensors
from profiles.measure.segment import Segment

_NEAR = 1e-4
"""Of a tensor's largest number, if its type has so many digits: other shapes have other kernels."""


def find_cut_dependence(segment: Segment) -> str:
    """Why, to follow a layer's name; empty: nothing was seen. Batch norms are known by their class."""
    if memory := segment.waiting.find_memory(*segment.fresh_inputs()):
        return f"remembers microbatches ({memory})"
    module = segment.module
    modes = [(part, part.training) for part in module.modules() if isinstance(part, _BatchNorm | _DropoutNd)]
    for part, _ in modes:
        part.training = False
    try:
        with torch.no_grad(), suppress(RuntimeError, ValueError, IndexError):
            if _mixes(module, segment):
                return "gives a sample something else beside other samples"
    finally:
        for part, mode in modes:
            part.training = mode
    return ""


def _mixes(module: nn.Module, segment: Segment) -> bool:
    """Whether some samples alone give something else than together with others, though twice the same."""
    own, other, fewer = other_samples(segment.inputs)
    alone, again, together = (_run(module, inputs) for inputs in (segment.inputs, segment.inputs, fewer))
    if not all(map(_are_near, alone, again)):
        return False  # it draws numbers
    least = min(own, other)
    pairs = [(a[:least], b[:least]) if a.dim() and len(a) == own and len(b) == other else (a, b)
             for a, b in zip(alone, together, strict=True)]  # fmt: skip
    return not all(_are_near(a, b) for a, b in pairs if a.shape == b.shape)


def _run(module: nn.Module, inputs: Tensors) -> Tensors:
    found = module(*(tensor.detach().clone() for tensor in inputs))
    return tuple(each.detach() for each in (found if isinstance(found, tuple | list) else (found,)))


def _are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return True
    scale = float(one.abs().nan_to_num(posinf=0.0).max())
    near = max(_NEAR, 16 * torch.finfo(one.dtype).eps)
    return torch.allclose(one, other, rtol=0.0, atol=near * scale, equal_nan=True)


def other_samples(inputs: Tensors) -> tuple[int, int, Tensors]:
    """How many samples inputs have, another number, and so many: half of them, or one and another one; all else is as
    it is.
    """
    own = len(inputs[0]) if inputs[0].dim() else 1
    other = own // 2 if own > 1 else 2
    return own, other, tuple(_take(each, own, other=other) if each.dim() else each for each in inputs)


def _take(tensor: torch.Tensor, own: int, *, other: int) -> torch.Tensor:
    if len(tensor) != own:
        return tensor
    if other < own:
        return tensor[:other].clone()
    return torch.cat([tensor, tensor * 1.5 if tensor.is_floating_point() else tensor])
