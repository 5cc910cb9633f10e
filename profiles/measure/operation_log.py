"""Which products and attentions a run on fake tensors does, with their shapes, so that tables can put times on them."""

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.estimates.block_operations import ATTENTION_BACKWARD
from profiles.estimates.operations import CausalAttention, Movement, Operation, Product, Rates
from profiles.estimates.sustained_rates import Phase, sustained
from profiles.measure.memory import tensors_in

aten = torch.ops.aten

_FIRST_FACTOR = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
"""Products, and where their first factor is among what they are given."""

FORWARD = {
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
}
"""Attention of queries, keys and values."""

BACKWARD = {getattr(aten, f"{forward.__name__}_backward") for forward in FORWARD}
"""Its backward, of a gradient and the same."""

KNOWN = {*_FIRST_FACTOR, *FORWARD, *BACKWARD}


@dataclass(slots=True)
class LoggedWork:
    """Operations and bytes of one phase."""

    operations: list[tuple[Operation, float]] = field(default_factory=list)
    """Each with how many times as long it takes."""
    moved_bytes: int = 0
    """Read and written by everything else, where what lies between two products or attentions is one fused kernel: what
    it reads from outside once, and what it makes that is wanted outside."""


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is run under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = LoggedWork()
        self._kernel = 0
        self._made: dict[int, tuple[int, int]] = {}
        self._read: set[int] = set()

    def __torch_dispatch__(self, func: Any, *rest: Any) -> Any:
        """Run an operation, keep its shapes if tables know its like, and otherwise what it moves."""
        _, args, given = (*rest, (), {})[:3]
        given = given or {}
        result = func(*args, **given)
        packet = getattr(func, "overloadpacket", None)
        taken, made = tensors_in((args, given)), tensors_in(result)
        if packet in KNOWN:
            self.work.operations += _shapes(packet, args, is_causal=_is_causal(func, args, given=given))
            self._kernel += 1
            self._read.clear()
            for tensor in taken:
                self._want(tensor)
        else:
            self._fuse(taken, made, most=sum(map(_size, made)) if packet in _LOOK_UPS else None)
        return result

    def finish(self) -> LoggedWork:
        """All of it; what was made and still lives is wanted outside."""
        self.work.moved_bytes += sum(size for _, size in self._made.values())
        self._made.clear()
        return self.work

    def _fuse(self, taken: Sequence[torch.Tensor], made: Sequence[torch.Tensor], *, most: int | None) -> None:
        """One more operation of the current kernel; views and changes in place move nothing."""
        known = {_key(tensor) for tensor in taken}
        fresh = [tensor for tensor in made if _key(tensor) not in known]
        if not fresh:
            return
        for tensor in taken:
            key = _key(tensor)
            self._want(tensor)
            if key not in self._read and self._made.get(key, (-1, 0))[0] != self._kernel:
                self._read.add(key)
                self.work.moved_bytes += _size(tensor) if most is None else min(most, _size(tensor))
        for tensor in fresh:
            storage = tensor.untyped_storage()
            self._read.discard(storage._cdata)
            self._made[storage._cdata] = (self._kernel, storage.nbytes())
            self._read.add(storage._cdata)
            weakref.finalize(storage, self._made.pop, storage._cdata, None)

    def _want(self, tensor: torch.Tensor) -> None:
        """What an earlier kernel made is wanted outside of it: it has to be written."""
        key = _key(tensor)
        kernel, size = self._made.get(key, (self._kernel, 0))
        if kernel != self._kernel:
            del self._made[key]
            self.work.moved_bytes += size


_LOOK_UPS = {aten.embedding, aten.index_select, aten.gather, aten.index}
"""What reads a part of its first input, as much as it writes."""


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor, of which a view may show some more than once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _is_causal(func: Any, args: Any, *, given: Any) -> bool:
    """Whether attention is told so, by place or by name."""
    names = [argument.name for argument in func._schema.arguments]
    told = dict(zip(names, args, strict=False)) | given
    return bool(told.get("is_causal", False))


def _shapes(packet: Any, args: Any, *, is_causal: bool) -> Iterator[tuple[Operation, float]]:
    if packet in _FIRST_FACTOR:
        first, second = args[_FIRST_FACTOR[packet] :][:2]
        rows, inner, columns = math.prod(first.shape[:-1]), first.shape[-1], second.shape[-1]
        if min(rows, inner, columns) > 0:
            yield Product(rows=rows, columns=columns, inner=inner), 1.0
        return
    is_backward = packet in BACKWARD
    query, key = args[is_backward], args[is_backward + 1]
    samples, heads, sequence, width = query.shape
    attention = CausalAttention(
        samples=samples, sequence=sequence, heads=heads, key_value_heads=key.shape[1], head_width=width
    )
    scores = key.shape[2] / sequence * (1 if is_causal else 2)
    yield attention, scores * (ATTENTION_BACKWARD if is_backward else 1.0)


def time_of(work: LoggedWork, rates: Rates, *, phase: Phase) -> int:
    """Nanoseconds of a phase, rounded up."""
    operations = list(work.operations)
    if work.moved_bytes > 0:
        operations.append((Movement(num_bytes=work.moved_bytes), 1.0))
    total = sum(
        factor * sustained(rates.price(operation), operation, rates=rates, phase=phase).ns
        for operation, factor in operations
    )
    return math.ceil(total)
