"""Devices shared out over stages so that every stage has a number of replicas it may have."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from solver_models.instance import Instance

T = TypeVar("T")


def common_replicas(instance: Instance) -> tuple[int, ...]:
    """The allowed numbers of replicas at which every layer has a cost on some type: what a first plan may have."""
    is_common: list[bool] = np.all(np.any(instance.measured, axis=1), axis=1).tolist()
    return tuple(count for count in instance.allowed_replicas if is_common[instance.layers.table_of_replicas[count]])


def largest_allowed(allowed: Sequence[int], most: int) -> int:
    """The largest allowed number of replicas up to `most`; `allowed` is ascending and begins with 1."""
    return max(count for count in allowed if count <= max(most, 1))


def share_out(devices: Sequence[T], num_groups: int, *, allowed: Sequence[int]) -> list[tuple[T, ...]]:
    """Neighbours in `num_groups` groups, as even as the allowed sizes leave them, larger ones first; the rest idles."""
    sizes = [largest_allowed(allowed, len(devices) // num_groups)] * num_groups
    larger = dict(pairwise(allowed))
    left, is_growing = len(devices) - sum(sizes), True
    while is_growing:
        is_growing = False
        for number, size in enumerate(sizes):
            if size in larger and larger[size] - size <= left:
                sizes[number], left, is_growing = larger[size], left - larger[size] + size, True
    ends = [sum(sizes[: number + 1]) for number in range(num_groups)]
    return [tuple(devices[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def cut_into_blocks(devices: Sequence[T], size: int, *, allowed: Sequence[int]) -> list[tuple[T, ...]]:
    """Neighbours in groups of `size`; what is left over in ever smaller groups of allowed sizes."""
    blocks, at = list[tuple[T, ...]](), 0
    while at < len(devices):
        count = largest_allowed(allowed, min(size, len(devices) - at))
        blocks.append(tuple(devices[at : at + count]))
        at += count
    return blocks
