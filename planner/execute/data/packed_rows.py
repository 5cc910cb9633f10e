"""Sequences of a pack as one row: `collate_fn` for torch's DataLoader, and what keeps its sequences apart."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class PackedRow(NamedTuple):
    """T tokens of N sequences, one after the other."""

    tokens: Tensor
    """[1, T]"""
    positions: Tensor
    """[1, T] of each token in its sequence."""
    boundaries: Tensor
    """[N + 1] int32: where sequences begin, and the end (`cu_seqlens` of attention kernels)."""
    longest: int
    """Tokens of the longest sequence (`max_seqlen`)."""


def pack_row(sequences: Sequence[Tensor]) -> PackedRow:
    """One row of sequences [T_i] in the order given; raises ValueError for none, or an empty one."""
    sizes = [sequence.shape[0] for sequence in sequences]
    if not sizes or min(sizes) == 0:
        raise ValueError(f"a pack has sequences of {sizes} tokens; give one or more, none of them empty")
    begins = torch.tensor([0, *sizes]).cumsum(0)
    positions = torch.cat([torch.arange(size) for size in sizes])
    return PackedRow(
        tokens=torch.cat(list(sequences))[None],
        positions=positions[None],
        boundaries=begins.to(torch.int32),
        longest=max(sizes),
    )


def causal_mask(boundaries: Tensor) -> Tensor:
    """[T, T] true where a token sees another: of its own sequence, itself or earlier; for attention without kernels."""
    sizes = boundaries.diff().long()
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=boundaries.device), sizes)
    return (owner[:, None] == owner[None, :]).tril()
