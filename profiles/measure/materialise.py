"""Layers made on a device, on the meta device to be recognised, or on fake tensors to be counted; and what of them, or
of the loss behind them, depends on how many samples are together.
"""

import copy
import hashlib
import types
from collections.abc import Iterator
from contextlib import suppress
from math import isnan
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from profiles.measure.model import Model, Tensors, as_tuple, take_samples
from profiles.measure.segment import Segment, make_optimizers

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


def make_layer(model: Model, name: str, *, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
    """A layer of its own on the device, with the weights that the executor would give it.

    Raises ValueError that names the layer where its factory fails or gives no module.
    """
    position = list(model.layers).index(name)
    # without accelerators `torch.manual_seed` keeps three tracebacks of every call, for when one is there
    seed = torch.manual_seed if device.type == "cuda" else torch.default_generator.manual_seed
    seed(model.seed * 1_000_003 + position)
    try:
        with torch.device(device):
            module = model.layers[name]()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"layer {name!r} cannot be made on {device.type}: {reason}; let its factory work under torch.device"
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"layer {name!r} is made as a {type(module).__name__}, not as a torch.nn.Module; "
            "return one from its factory"
        )
    if any(tensor.device.type != device.type for tensor in _tensors(module)) or _is_handed_out(
        model, name, module=module
    ):
        module = copy.deepcopy(module)
    return module.to(device=device, dtype=dtype)


def require_carried(name: str, module: nn.Module, *, optimizer: Any) -> None:
    """Raise ValueError for buffers that are not dense, and for tables whose gradients the optimizer does not take both
    sparse, as one replica leaves them, and dense, as several add them up.
    """
    for path, buffer in module.named_buffers():
        if buffer.layout is not torch.strided:
            raise ValueError(f"layer {name!r}: buffer {path!r} is of layout {buffer.layout}; register `.to_dense()`")
    for path, part in module.named_modules():
        is_table = isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad
        if is_table and (reason := _refuses(optimizer)):
            raise ValueError(
                f"layer {name!r}: the gradient of {path or 'its table'!r} is of layout torch.sparse_coo on one replica "
                f"and dense on several, but the optimizer refuses ({reason}); "
                "set sparse=False, or give another optimizer"
            )


def _refuses(optimizer: Any) -> str:
    """Why it takes no gradient that is sparse, or none that is dense; empty: it takes both."""
    weight = nn.Parameter(torch.zeros(2, 2))
    try:
        for grad in (torch.eye(2), torch.eye(2).to_sparse()):
            weight.grad = grad
            make_optimizers(optimizer, [weight])
    except (RuntimeError, ValueError) as error:
        return str(error.__cause__ or error) or repr(error)
    return ""


def _is_handed_out(model: Model, name: str, *, module: nn.Module) -> bool:
    """Whether the factory gives one and the same module again: it must stay as it is."""
    with torch.device("meta"):
        return model.layers[name]() is module


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def signature(module: nn.Module) -> str:
    """Hash of everything that decides what a module computes, the values of its tensors aside: alike modules cost
    the same. Classes, their code, plain attributes, shapes and types of parameters and buffers, submodules. Neither
    where a part is counts, only how deep, nor its number among the layers.
    """
    lines = []
    for path, part in module.named_modules():
        lines.append(f"{path.count('.')} {type(part).__module__}.{type(part).__qualname__} {_code(type(part).forward)}")
        lines += sorted(f"{key}={_render(value)}" for key, value in vars(part).items() if _counts(key))
        lines += [f"{key} {_describe(value)}" for key, value in part.named_parameters(recurse=False)]
        lines += [f"{key} {_describe(value)}" for key, value in part.named_buffers(recurse=False)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _counts(key: str) -> bool:
    return not key.startswith("_") and key not in ("layer_idx", "layer_number")


def _render(value: Any) -> str:
    """Attributes that are no plain values count with their type, and functions with their code."""
    return repr(value) if _is_plain(value) else _code(value) or type(value).__qualname__


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return isinstance(value, _PLAIN)


def _code(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return str(getattr(function, "__qualname__", ""))
    constants = [item for item in code.co_consts if _is_plain(item)]
    return hashlib.sha256(code.co_code + repr((code.co_names, constants)).encode()).hexdigest()[:16]


def _describe(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"


def cast(tensors: Tensors, dtype: torch.dtype | None) -> Tensors:
    """Floating-point tensors in another type, others as they are."""
    if dtype is None:
        return tensors
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def is_batch_norm(module: nn.Module) -> bool:
    """Whether it takes statistics of the samples that it is given."""
    return isinstance(module, _BatchNorm) and module.training


_ALIKE = 1e-3
"""Losses that differ by a smaller part of them are the same, added up in another order."""

_MOST_SAMPLES = 128
"""Samples whose losses are compared."""


def is_uneven_loss(model: Model, last: nn.Module, *, inputs: Tensors) -> bool:
    """Whether the loss of several samples is not the mean of theirs, or their sum where the model says that it adds up.

    `last`: the last layer, with `inputs` of one microbatch. Its outputs stand for those of every other one: what counts
    is whether the loss weighs targets by what else is in the batch, so two at a time are held against each alone.
    """
    target = model.batch(0)[1]
    if target.dim() == 0 or inputs[0].shape[0] < 1:
        return False
    with torch.no_grad():
        outputs = tuple(take_samples(tensor.detach(), 2) for tensor in as_tuple(last(*inputs)))
        for start in range(0, min(target.shape[0] - 1, _MOST_SAMPLES), 2):
            pair = target[start : start + 2].to(outputs[0].device)
            pair = pair.to(outputs[0].dtype) if pair.is_floating_point() else pair
            parts = (
                _loss_of(model, tuple(each[k : k + 1] for each in outputs), target=pair[k : k + 1]) for k in (0, 1)
            )
            whole, said = _loss_of(model, outputs, target=pair), sum(parts) / (1 if model.loss_is_sum else 2)
            if not isnan(whole) and not abs(whole - said) <= _ALIKE * max(abs(whole), abs(said)):
                return True
    return False


def _loss_of(model: Model, outputs: Tensors, *, target: torch.Tensor) -> float:
    return float(model.loss(outputs[0] if len(outputs) == 1 else outputs, target))


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
    alone, again, together = (_run_once(module, inputs) for inputs in (segment.inputs, segment.inputs, fewer))
    if not all(map(_are_near, alone, again)):
        return False  # it draws numbers
    least = min(own, other)
    for a, b in zip(alone, together, strict=True):
        is_cut = a.dim() > 0 and len(a) == own and len(b) == other
        one, some = (a[:least], b[:least]) if is_cut else (a, b)
        if not _are_near(one, some) if one.shape == some.shape else is_cut:
            return True  # where shapes differ, what it gives of a sample is as long as there are samples
    return False


def _run_once(module: nn.Module, inputs: Tensors) -> Tensors:
    found = module(*(tensor.detach().clone() for tensor in inputs))
    return tuple(each.detach() for each in (found if isinstance(found, tuple | list) else (found,)))


def _are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return True
    scale = float(one.abs().nan_to_num(posinf=0.0).max())
    near = max(_NEAR, 16 * torch.finfo(one.dtype).eps)
    return torch.allclose(one, other, rtol=0.0, atol=near * scale, equal_nan=True)


def other_samples(inputs: Tensors, *, times: int = 0, likely: int = 0) -> tuple[int, int, Tensors]:
    """How many samples inputs have (the `likely` ones, else as the first), another number, and so many: `times` as
    many, or, where that is not said, half of them, or one and another one; all else is as it is.
    """
    lengths = [len(each) if each.dim() else 1 for each in inputs]
    own = likely if likely in lengths else lengths[0]
    other = own * times or (own // 2 if own > 1 else 2)
    return own, other, tuple(_take(each, own, other=other) if each.dim() else each for each in inputs)


def _take(tensor: torch.Tensor, own: int, *, other: int) -> torch.Tensor:
    if len(tensor) != own:
        return tensor
    more = tensor * 1.5 if tensor.is_floating_point() else tensor
    return torch.cat([tensor, *[more] * (other // own - 1)])[:other].clone()
