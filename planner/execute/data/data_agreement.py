"""Whether processes that should have the same data do have it: batches where they are taken, replicas of a stage."""

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

_Circles = Sequence[tuple[int, Sequence[int]]]
"""Numbers of stages, each with ranks that hold the same of it."""

_AS_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_batch(tensors: Iterable[torch.Tensor]) -> str:
    """Hash of shapes, types and all values."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _digest_values(tensor: torch.Tensor) -> int:
    """A sum over all bits, made where the tensor is: values that differ anywhere differ in it, but by an accident."""
    flat = tensor.detach().contiguous().reshape(-1)
    whole = flat.view(_AS_WHOLE_NUMBERS[min(flat.element_size(), 8)])
    return int(whole.sum(dtype=torch.int64))


def find_batch_difference(told: Sequence[Mapping[Any, tuple[str, str]]], *, devices: Sequence[str], number: int) -> str:
    """A sentence if ranks were given different batches; per rank and microbatch hashes of inputs and target.

    None: in the place of a microbatch, the whole batch.
    """
    for microbatch in sorted({each for digests in told for each in digests}):
        given = [(rank, digests[microbatch]) for rank, digests in enumerate(told) if microbatch in digests]
        first, (inputs, target) = given[0]
        for rank, digest in given[1:]:
            if digest == (inputs, target):
                continue
            names = [name for name, a, b in zip(("inputs", "target"), digest, (inputs, target), strict=True) if a != b]
            verb = "differ" if len(names) == 2 or names == ["inputs"] else "differs"
            what = "" if microbatch is None else f" of microbatch {microbatch}"
            return (
                f"iteration {number}: {' and '.join(names)}{what} of rank {rank} ({devices[rank]}) {verb} from those "
                f"of rank {first} ({devices[first]}), so outputs would be held against the targets of other samples; "
                "every process has to be given the same whole batch for the same iteration: seed its shuffling and its "
                "augmentation by the iteration's number, not by the process"
            )
    return ""


Shape = Hashable
"""Whatever says which shapes and types a microbatch has."""


def find_shape_fault(
    told: Sequence[Mapping[int, Shape]], *, devices: Sequence[str], number: int, planned: int | None
) -> str:
    """A sentence if ranks were given microbatches of other shapes, one was given to nobody, or there are not as many as
    the plan orders (None: any number); per rank the shapes of those it was given.
    """
    first = dict[int, tuple[int, Shape]]()
    for rank, shapes in enumerate(told):
        for microbatch, shape in shapes.items():
            other, wanted = first.setdefault(microbatch, (rank, shape))
            if shape != wanted:
                return (
                    f"iteration {number}: microbatch {microbatch} of rank {rank} ({devices[rank]}) has other shapes "
                    f"than that of rank {other} ({devices[other]}); every process has to be given the same "
                    "microbatches for the same iteration"
                )
    count = max(first, default=-1) + 1
    if missing := sorted(set(range(count)) - set(first)):
        return f"iteration {number}: no process was given microbatch {missing[0]} of {count}; number them from 0 on"
    if not count or (planned is not None and count != planned):
        wanted = "at least one" if planned is None else f"{planned}, of which the plan orders the actions"
        remedy = "" if planned is None else ", or distribute them again (`Training.deal`)"
        return f"iteration {number}: {count} microbatches were given instead of {wanted}; give as many{remedy}"
    return ""


def find_assignment_fault(dealing: Sequence[Sequence[int]], *, num_pipelines: int, count: int) -> str:
    """A sentence unless every microbatch is dealt once and no pipeline is left without one."""
    if len(dealing) != num_pipelines:
        return f"these are {len(dealing)} pipelines, and the plan has {num_pipelines}"
    if not all(dealing):
        return f"pipeline {[bool(assignment) for assignment in dealing].index(False)} has none; give each at least one"
    if sorted(microbatch for assignment in dealing for microbatch in assignment) != list(range(count)):
        return f"each of microbatches 0 to {count - 1} has to be in it once"
    return ""


def find_assignment_difference(
    dealings: Sequence[Sequence[Sequence[int]]], *, devices: Sequence[str], number: int
) -> str:
    """A sentence if ranks do not deal alike."""
    for rank, dealing in enumerate(dealings):
        if list(map(list, dealing)) != list(map(list, dealings[0])):
            return (
                f"iteration {number}: rank {rank} ({devices[rank]}) deals the microbatches otherwise than rank 0 "
                f"({devices[0]}); `deal` has to depend on the shapes it is given and on nothing else, no clock and no "
                "random numbers"
            )
    return ""


IGNORED = -100
"""Targets that torch's losses leave out."""


def find_uneven_targets(target: torch.Tensor, *, num_microbatches: int, samples: Sequence[int], number: int) -> str:
    """A sentence if replicas of the last stage, which take so many samples each, have other shares of the targets that
    count in a microbatch: the mean of their means, by their samples, is not that of the microbatch.
    """
    if len(samples) == 1 or target.is_floating_point() or target.dim() == 0:
        return ""
    by_part = target.ne(IGNORED).reshape(num_microbatches, sum(samples), -1).sum(-1)
    counts = torch.stack([part.sum(1) for part in torch.split(by_part, list(samples), dim=1)], dim=1)
    is_uneven = counts * sum(samples) != by_part.sum(1, keepdim=True) * torch.tensor(samples, device=counts.device)
    if not bool(is_uneven.any()):
        return ""
    microbatch = int(is_uneven.any(1).nonzero()[0])
    told = " and ".join(map(str, counts[microbatch].tolist()))
    return (
        f"iteration {number}: of the targets of microbatch {microbatch}, the {len(samples)} replicas of the last stage "
        f"have {told} that are not {IGNORED}, so the mean of their losses is not the loss of the microbatch; let the "
        "loss add up and say how many count (loss_is_sum and num_tokens), or plan without replicas of the last stage "
        "(pipeplan plan --no-replication)"
    )


def find_drift(digests: Sequence[Mapping[str, int]], *, alike: _Circles, devices: Sequence[str], number: int) -> str:
    """A sentence if replicas of a stage are not alike; per rank the sums of `stage/name` of parameters and buffers."""
    for name, stage, first, rank in _find_differences(digests, alike):
        return (
            f"after iteration {number} {name} of stage {stage} is not the same on its "
            f"replicas on ranks {first} ({devices[first]}) and {rank} ({devices[rank]}): the layer changes "
            "it by what it sees of its own samples, or the optimizer is not the same everywhere; make it "
            "depend on nothing but gradients, or plan without replicas (pipeplan plan --max-replicas 1)"
        )
    return ""


def find_team_drift(
    digests: Sequence[Mapping[str, int]], *, teams: _Circles, devices: Sequence[str], number: int
) -> str:
    """The same of what all members of a group have whole."""
    for name, stage, first, rank in _find_differences(digests, teams):
        return (
            f"after iteration {number} {name} of stage {stage}, which no style cuts, is not the same on the devices of "
            f"its group on ranks {first} ({devices[first]}) and {rank} ({devices[rank]}): it is used on a part of the "
            "heads or units, or the layer draws or learns by what it sees; give it a style of its own in "
            "`parallelize`, or plan with max_width = 1"
        )
    return ""


def _find_differences(digests: Sequence[Mapping[str, int]], circles: _Circles) -> Iterator[tuple[str, int, int, int]]:
    """Name, stage, and the two ranks that differ."""
    for stage, (first, *others) in circles:
        for rank in others:
            for name, value in digests[first].items():
                if name.startswith(f"{stage}/") and digests[rank].get(name) != value:
                    yield name.partition("/")[2], stage, first, rank


def digest_stage(stage: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """The sums of one stage's parameters and buffers, by `stage/name`."""
    return {f"{stage}/{name}": _digest_values(tensor) for name, tensor in tensors if tensor.numel()}
