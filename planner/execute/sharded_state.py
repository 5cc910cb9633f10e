"""Sharded optimizer state, put together for a checkpoint, which knows nothing of pieces."""

from typing import Any

import torch
from torch import distributed

from planner.execute.execution import Execution
from planner.execute.sharding import ShardedReduction, ShardPiece
from planner.execute.torch_versions.collectives import all_gather_single


def gather_states(execution: Execution, *, by_all: bool = False) -> dict[int, dict[str, Any]]:
    """The whole state of every parameter that is cut here, by the parameter's identity; a collective call.

    Tensors of the parameter's shape (of a group's part, of its own) are on the host. Empty where another replica speaks
    for the stage, unless all replicas want it (`by_all`).
    """
    found: dict[int, dict[str, Any]] = {}
    for number, reduction in sorted(execution.sharded.items()):
        is_kept = by_all or execution.is_in_first(number)
        states = _gather_stage(execution, reduction, is_kept=is_kept)
        found |= states if is_kept else {}
    return found


def _gather_stage(execution: Execution, reduction: ShardedReduction, *, is_kept: bool) -> dict[int, dict[str, Any]]:
    held = [(piece, _state_of(execution, piece)) for piece in reduction.pieces.values()]
    told: list[Any] = [None] * reduction.num_replicas
    distributed.all_gather_object(told, [_names_cut(piece, state) for piece, state in held], group=reduction.group)
    found = {}
    for place, (piece, state) in enumerate(held):
        names = set[str].intersection(*(each[place] for each in told))
        found[id(piece.whole)] = {
            name: _gather(value, piece, reduction=reduction, is_kept=is_kept) if name in names else value
            for name, value in sorted(state.items(), key=lambda item: str(item[0]))
        }
    return found


def _state_of(execution: Execution, piece: ShardPiece) -> dict[str, Any]:
    optimizer = execution.update.optimizer_of(piece.whole)
    return {} if optimizer is None else optimizer.state.get(piece.parameter, {})


def _names_cut(piece: ShardPiece, state: dict[str, Any]) -> set[str]:
    """The state that is cut as the parameter is; a piece of one element looks like a single number, others do not."""
    return {
        name
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == piece.parameter.shape
    }


def _gather(
    value: torch.Tensor, piece: ShardPiece, *, reduction: ShardedReduction, is_kept: bool
) -> torch.Tensor | None:
    mine = torch.zeros(piece.size, dtype=value.dtype, device=piece.whole.device)
    mine[: value.numel()] = value.reshape(-1)
    every = mine.new_empty(reduction.num_replicas * piece.size)
    all_gather_single(every, mine, group=reduction.group)
    return every[: piece.whole.numel()].view(piece.whole.shape).cpu() if is_kept else None


def cut_state(execution: Execution, parameter: torch.nn.Parameter, *, value: Any) -> Any:
    """What of a state's whole value belongs here."""
    piece, part = execution.update.pieces.get(id(parameter)), execution.parts.of(parameter)
    is_cut = isinstance(value, torch.Tensor) and value.shape == execution.parts.shape(parameter)
    if not is_cut or (piece is None and part is None):
        return value
    value = value if part is None else part.cut(value)
    return (value if piece is None else piece.cut(value)).to(execution.device, copy=True)
