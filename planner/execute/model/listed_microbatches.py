"""Microbatches that are given one by one, of sizes of their own, instead of as equal parts of one batch."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from planner.execute.training import Batch, Microbatches, as_tuple

MicrobatchShape = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape and type of every input of a microbatch."""


def are_listed(given: Any) -> bool:
    """Whether microbatches are given one by one, and not inputs and target of a batch to be cut."""
    if type(given) is not tuple and isinstance(given, Mapping):
        return True
    return not (len(given) == 2 and isinstance(given[1], torch.Tensor))


def list_microbatches(given: Batch | Microbatches, *, planned: Sequence[int] | None, count: int) -> dict[int, Batch]:
    """By their numbers: as they were given, or cut out of a batch.

    `planned`: the samples of each, if the plan says so; otherwise `count` equal ones.
    """
    if are_listed(given):
        return _number_microbatches(cast(Microbatches, given))
    batch = cast(Batch, given)
    samples = len(batch[1]) if batch[1].dim() else 0
    is_planned = planned is not None and (sum(planned) == samples or len(set(planned)) > 1)
    return _cut_batch(batch, sizes=planned if planned is not None and is_planned else [samples // count] * count)


def _number_microbatches(given: Microbatches) -> dict[int, Batch]:
    """By their numbers; raises ValueError for what is no microbatch."""
    numbered = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
    for number, each in numbered.items():
        is_pair = isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[1], torch.Tensor)
        if not isinstance(number, int) or number < 0 or not is_pair:
            what = f"{type(each).__name__} of {len(each)}" if isinstance(each, tuple | list) else type(each).__name__
            raise ValueError(
                f"microbatch {number!r} is a {what}; give (inputs, target) for each, in a list or by its number"
            )
    return numbered


def _cut_batch(batch: Batch, *, sizes: Sequence[int]) -> dict[int, Batch]:
    """The microbatches of a batch whose samples lie along dimension 0, so many in each.

    Raises ValueError if it has another number of samples.
    """
    inputs, target = as_tuple(batch[0]), batch[1]
    for tensor in (*inputs, target):
        if tensor.dim() == 0 or len(tensor) != sum(sizes):
            count = "no samples" if tensor.dim() == 0 else f"{len(tensor)} samples"
            raise ValueError(
                f"the batch has {count}, but the {len(sizes)} microbatches have {sum(sizes)} together; give as many, "
                "or a list of microbatches"
            )
    cut = [torch.split(tensor, list(sizes)) for tensor in (*inputs, target)]
    return {number: (tuple(parts), wanted) for number, (*parts, wanted) in enumerate(zip(*cut, strict=True))}


def shape_of(microbatch: Batch) -> MicrobatchShape:
    """Of its inputs."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in as_tuple(microbatch[0]))


def show_shape(shape: MicrobatchShape) -> str:
    """As people write it."""
    return " and ".join(f"{lengths} {str(dtype).removeprefix('torch.')}" for lengths, dtype in shape)
