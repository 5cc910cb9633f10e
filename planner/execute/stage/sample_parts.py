"""What two stages hand each other whose replicas take different shares of the samples: cut, or whole.

Samples lie along dimension 0. A tensor that is as long for any number of samples belongs to none of them (the bias of
positions that T5 hands from block to block): every replica is given all of it, by each that has samples in common with
it, takes the one that comes with its first sample, and sends the gradient there alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from planner.execute.stage.stage_module import StageShape, unflatten
from planner.execute.table.routes import SampleRange
from planner.execute.table.wiring import StageEdge
from planner.execute.training import Tensors

Shapes = Mapping[Fraction, StageShape]
"""Of a stage, by the share of the samples that a replica of it takes."""


def share_of(tensor: torch.Tensor, part: SampleRange, *, is_whole: bool) -> torch.Tensor:
    """What of a tensor a message takes along."""
    return tensor if is_whole or part.is_whole else tensor[part.rows(len(tensor))]


def join_shares(parts: Sequence[torch.Tensor], *, is_whole: bool) -> torch.Tensor:
    """One tensor of what messages brought; raises RuntimeError where several brought all of it, and not the same."""
    if len(parts) > 1 and is_whole and not all(torch.equal(parts[0], part) for part in parts[1:]):
        raise RuntimeError(
            f"a tensor of shape {tuple(parts[0].shape)} between stages does not have its samples along dimension 0; "
            "plan with uneven_replication = false and unequal_shares = false"
        )
    return parts[0] if is_whole or len(parts) == 1 else torch.cat(list(parts))


def mark_whole(shapes: Mapping[int, Shapes], edges: Sequence[StageEdge]) -> dict[int, dict[Fraction, StageShape]]:
    """The shapes of all stages, told which tensors travel whole; `edges`: between different shares of the samples.

    Raises ValueError for a tensor that is neither whole nor cut along dimension 0.
    """
    marked = {stage: dict(own) for stage, own in shapes.items()}
    for edge in edges:
        taken = {share: shape.inputs for share, shape in marked[edge.consumer].items()}
        made = {share: shape.outputs for share, shape in marked[edge.producer].items()}
        first = next(iter(marked[edge.consumer].values()))
        whole_inputs = _find_whole(taken, unflatten(range(len(first.inputs)), first.counts), edge=edge)
        first = next(iter(marked[edge.producer].values()))
        whole_outputs = _find_whole(made, unflatten(range(len(first.outputs)), first.leaving_counts), edge=edge)
        for share, shape in marked[edge.consumer].items():
            marked[edge.consumer][share] = replace(shape, whole_inputs=shape.whole_inputs | whole_inputs)
        for share, shape in marked[edge.producer].items():
            marked[edge.producer][share] = replace(shape, whole_outputs=shape.whole_outputs | whole_outputs)
    return marked


def _find_whole(
    tensors: Mapping[Fraction, Tensors], places: Mapping[str, tuple[int, ...]], *, edge: StageEdge
) -> frozenset[int]:
    (one, first), *others = tensors.items()
    found = set()
    for place in (place for name in edge.values for place in places[name]):
        if all(theirs[place].shape == first[place].shape for _, theirs in others):
            found.add(place)
            continue
        for share, theirs in others:
            _require_cut(first[place], theirs[place], shares=(one, share), edge=edge)
    return frozenset(found)


def _require_cut(
    mine: torch.Tensor, theirs: torch.Tensor, *, shares: tuple[Fraction, Fraction], edge: StageEdge
) -> None:
    is_cut = mine.dim() > 0 and mine.shape[0] * shares[1] == theirs.shape[0] * shares[0]
    if not is_cut or mine.shape[1:] != theirs.shape[1:]:
        raise ValueError(
            f"stage {edge.consumer} takes {', '.join(edge.values)}: for {shares[0]} and {shares[1]} of the samples its "
            f"shapes are {tuple(mine.shape)} and {tuple(theirs.shape)}, not divided along dimension 0; plan with "
            "uneven_replication = false and unequal_shares = false"
        )
