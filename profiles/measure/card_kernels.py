"""Fake tensors are CPU tensors; under `card_kernels` attention and dropout are those that torch runs on a CUDA card.

On a CPU, attention with dropout leaves the fused kernel and keeps its S x S scores, and dropout keeps its mask in the
type of its input. On a card fused kernels keep queries, keys, values, the output and a logarithm per row, and dropout
keeps a byte an element. Which kernel a card takes follows torch 2.13's filters; shapes of what a kernel makes, and what
autograd saves of it, are torch's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn.functional import pad

from profiles.measure.model import Tensors

aten = torch.ops.aten

_Kernel = Literal["flash", "cudnn", "efficient", "math"]
"""How scaled dot product attention is computed; `math` keeps the scores, in single precision."""

HALVES = (torch.float16, torch.bfloat16)

FLASH_WIDTH, CUDNN_WIDTH = 256, 128
"""Widest heads."""

_ALIGNED = 8
"""Elements to a multiple of which flash fills up heads, and the efficient kernel rows of masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Shapes and settings that decide on the attention kernel."""

    query: torch.Tensor
    """Samples x heads x rows x width."""
    key: torch.Tensor
    """Shape and type of keys."""
    value: torch.Tensor
    """Shape and type of values."""
    mask: torch.Tensor | None
    """Added to scores, or where scores count."""
    dropout: float
    """The part of scores that is dropped."""
    is_causal: bool
    """Whether rows see earlier columns alone."""

    def kernel(self, capability: tuple[int, int]) -> _Kernel:
        """The first that takes it on a card of this compute capability."""
        if not self._is_dense():
            return "math"
        if self._fits_flash(capability):
            return "flash"
        if self._fits_cudnn(capability):
            return "cudnn"
        return "efficient" if self._fits_efficient() else "math"

    @property
    def _tensors(self) -> Tensors:
        return self.query, self.key, self.value

    @property
    def _widths(self) -> tuple[int, ...]:
        return tuple(tensor.shape[-1] for tensor in self._tensors)

    def _is_dense(self) -> bool:
        has_shape = all(tensor.dim() == 4 and tensor.numel() > 0 for tensor in self._tensors)
        return has_shape and len({tensor.dtype for tensor in self._tensors}) == 1

    def _is_grouped(self) -> bool:
        return self.query.shape[1] != self.key.shape[1]

    def _fits_flash(self, capability: tuple[int, int]) -> bool:
        """No mask, equal widths, and causal attention of as many rows as columns."""
        width, is_half = self._widths[0], self.query.dtype in HALVES
        is_square = self.query.shape[2] == self.key.shape[2] or not self.is_causal
        has_widths = len(set(self._widths)) == 1 and width <= FLASH_WIDTH
        trains = any(tensor.requires_grad for tensor in self._tensors)
        is_small = (8, 6) <= capability <= (8, 9)
        lacks_backward = trains and is_small and (192 < width <= 224 or (width > 224 and self.dropout > 0))
        return self.mask is None and is_half and is_square and has_widths and not lacks_backward

    def _fits_cudnn(self, capability: tuple[int, int]) -> bool:
        """Which torch prefers from Hopper on; counted where flash does not fit, for its bytes are flash's."""
        has_widths = all(width % 8 == 0 and width <= CUDNN_WIDTH for width in self._widths)
        return capability >= (9, 0) and self.query.dtype in HALVES and has_widths and self._widths[0] == self._widths[1]

    def _fits_efficient(self) -> bool:
        alignment = 8 if self.query.dtype in HALVES else 4
        is_aligned = all(width % alignment == 0 for width in self._widths) and self._widths[0] == self._widths[1]
        return (*HALVES, torch.float32).count(self.query.dtype) > 0 and is_aligned and not self._is_grouped()


def attend(*given: Any, capability: tuple[int, int], taken: set[_Kernel], **named: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` by the kernel that a card takes, which joins those that were `taken`.

    `given` and `named` are what torch's own takes: query, key, value, attn_mask, dropout_p, is_causal by place or by
    name, scale and enable_gqa by name.
    """
    told = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), given, strict=False)) | named
    query, key, value, mask = (told.get(name) for name in ("query", "key", "value", "attn_mask"))
    dropout_p, is_causal = told.get("dropout_p", 0.0), told.get("is_causal", False)
    scale, enable_gqa = told.get("scale"), told.get("enable_gqa", False)
    assert query is not None
    assert key is not None
    assert value is not None
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
    call = AttentionCall(query=query, key=key, value=value, mask=mask, dropout=dropout_p, is_causal=is_causal)
    kernel = call.kernel(capability)
    taken.add(kernel)
    match kernel:
        case "flash":
            width = query.shape[-1]
            filled = (
                pad(tensor, (0, -width % _ALIGNED)) if width % _ALIGNED else tensor for tensor in (query, key, value)
            )
            scale = width**-0.5 if scale is None else scale
            return _first(aten._scaled_dot_product_flash_attention(*filled, dropout_p, is_causal, scale=scale), width)
        case "cudnn":
            bias = _spread(mask, call)
            given = (query, key, value, bias, _is_trained(call), dropout_p, is_causal)
            return _first(aten._scaled_dot_product_cudnn_attention(*given, scale=scale), value.shape[-1])
        case "efficient":
            bias = _spread(None if mask is None else _filled_up(mask), call)
            given = (query, key, value, bias, _is_trained(call), dropout_p, is_causal)
            return _first(aten._scaled_dot_product_efficient_attention(*given, scale=scale), value.shape[-1])
        case "math":
            plain = aten._scaled_dot_product_attention_math
            made = plain(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return _first(made, value.shape[-1])


def _first(made: Any, width: int) -> torch.Tensor:
    output: torch.Tensor = made[0]
    return output if output.shape[-1] == width else output[..., :width]


def _is_trained(call: AttentionCall) -> bool:
    return any(tensor.requires_grad for tensor in (call.query, call.key, call.value))


def _filled_up(mask: torch.Tensor) -> torch.Tensor:
    """Rows of a mask to a multiple of `_ALIGNED`, of which as many columns show as before."""
    columns = mask.shape[-1]
    return mask if columns % _ALIGNED == 0 else pad(mask, (0, -columns % _ALIGNED))[..., :columns]


def _spread(mask: torch.Tensor | None, call: AttentionCall) -> torch.Tensor | None:
    """A mask for all samples and heads, without a copy."""
    samples, heads, rows, _ = call.query.shape
    return None if mask is None else mask.expand(samples, heads, rows, call.key.shape[2])


def drop(given: torch.Tensor, *how: Any) -> torch.Tensor:
    """`dropout` that keeps a byte an element; in place it keeps a mask of its input's type, on a card as well.

    `how`: the part that is dropped, and whether this is training.
    """
    p, train = how
    if not train or p == 0 or given.numel() == 0:
        return given
    if p == 1:
        return given * torch.zeros((), dtype=given.dtype, device=given.device)
    output: torch.Tensor = aten.native_dropout(given, p, True)[0]
    return output


@contextmanager
def card_kernels(capability: tuple[int, int] | None) -> Iterator[set[_Kernel]]:
    """Attention and dropout of CPU tensors as on a card of this compute capability; None: as on a CPU.

    Gives a set that the kernels of attention join as they are taken; what a model computes by itself does not. Holds
    for the whole process: only for fake tensors, whose values nobody reads.
    """
    taken: set[_Kernel] = set()
    if capability is None:
        yield taken
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        attending = partial(attend, capability=capability, taken=taken)
        library.impl("scaled_dot_product_attention", attending, "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl("dropout", drop, "AutogradCPU")  # type: ignore[no-untyped-call]
        yield taken
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
