"""Which products and attentions a run on fake tensors does, with their shapes, so that tables can put times on them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.block_operations import ATTENTION_BACKWARD
from profiles.operations import CausalAttention, Movement, Operation, Product, Rates

aten = torch.ops.aten

FIRST_FACTOR = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
"""Products, and where their first factor is among what they are given."""

FORWARD = {
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
}
"""Attention of queries, keys and values."""

BACKWARD = {
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
}
"""Its backward, of a gradient and the same."""

KNOWN = {*FIRST_FACTOR, *FORWARD, *BACKWARD}


@dataclass(slots=True)
class LoggedWork:
    """What one phase did."""

    operations: list[tuple[Operation, float]] = field(default_factory=list)
    """Each with how many times as long it takes."""
    written_bytes: int = 0
    """By all of them."""


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is run under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = LoggedWork()

    def __torch_dispatch__(self, func: Any, *rest: Any) -> Any:
        """Run an operation, and keep its shapes if tables know its like."""
        _, args, given = (*rest, (), {})[:3]
        given = given or {}
        result = func(*args, **given)
        packet = getattr(func, "overloadpacket", None)
        if packet in KNOWN:
            self.work.operations += _shapes(packet, args, given=given)
            outputs = result if isinstance(result, tuple | list) else (result,)
            self.work.written_bytes += sum(
                each.numel() * each.element_size() for each in outputs if isinstance(each, torch.Tensor)
            )
        return result


def _shapes(packet: Any, args: Any, *, given: Any) -> Iterator[tuple[Operation, float]]:
    if packet in FIRST_FACTOR:
        first, second = args[FIRST_FACTOR[packet] :][:2]
        rows, inner, columns = math.prod(first.shape[:-1]), first.shape[-1], second.shape[-1]
        if min(rows, inner, columns) > 0:
            yield Product(rows=rows, columns=columns, inner=inner), 1.0
        return
    is_backward = packet in BACKWARD
    query, key = args[is_backward], args[is_backward + 1]
    samples, heads, sequence, width = query.shape
    causal = given.get("is_causal", any(each is True for each in args))
    attention = CausalAttention(
        samples=samples, sequence=sequence, heads=heads, key_value_heads=key.shape[1], head_width=width
    )
    scores = key.shape[2] / sequence * (1 if causal else 2)
    yield attention, scores * (ATTENTION_BACKWARD if is_backward else 1.0)


def time_of(work: LoggedWork, rates: Rates, *, moved_bytes: int) -> int:
    """Nanoseconds of a phase, in which `moved_bytes` are read and written beside its products, rounded up."""
    total = sum(factor * rates.price(operation).ns for operation, factor in work.operations)
    if moved_bytes > 0:
        total += rates.price(Movement(num_bytes=moved_bytes)).ns
    return math.ceil(total)
