"""Sharded optimizer state, put together for a checkpoint, which knows nothing of pieces and parts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.parallel.full_sharding import FullyShardedReduction
from planner.execute.parallel.process_groups import gather
from planner.execute.parallel.sharding import ShardedReduction, ShardPiece
from planner.execute.run.execution import Execution
from planner.execute.torch_versions.collectives import all_gather_single


def gather_states(execution: Execution, *, by_all: bool = False) -> dict[int, dict[str, Any]]:
    """The whole state of every parameter that is cut here, by the parameter's identity; a collective call.

    Tensors of the parameter's shape (of a group's part, of its own) are on the host. Empty where another replica speaks
    for the stage, unless all replicas want it (`by_all`).
    """
    found: dict[int, dict[str, Any]] = {}
    for number, reduction in sorted(execution.model.sharded.items()):
        is_kept = by_all or execution.model.is_in_first(number)
        states = _gather_stage(execution, reduction, is_kept=is_kept)
        found |= states if is_kept else {}
    return found


def _gather_stage(execution: Execution, reduction: ShardedReduction, *, is_kept: bool) -> dict[int, dict[str, Any]]:
    shares = list(_shares(reduction))
    states = [_state_of(execution, share.stepped) for share in shares]
    mine = [_names_cut(share.stepped, state) for share, state in zip(shares, states, strict=True)]
    told = gather(mine, group=reduction.group)
    found = {}
    for place, (share, state) in enumerate(zip(shares, states, strict=True)):
        names = set[str].intersection(*(each[place] for each in told))
        found[id(share.named)] = {
            name: _on_host(share.gather(value), is_kept=is_kept) if name in names else value
            for name, value in sorted(state.items(), key=lambda item: str(item[0]))
        }
    return found


class _Share(NamedTuple):
    """A parameter whose state is in pieces or parts."""

    named: nn.Parameter
    """What the state is filed under."""
    stepped: nn.Parameter
    """This rank's piece, which the optimizer steps."""
    gather: Callable[[torch.Tensor], torch.Tensor]
    """From a state of the stepped one's shape to that of the whole; a collective call of the replicas."""


def _shares(reduction: ShardedReduction) -> Iterator[_Share]:
    for piece in reduction.pieces.values():
        yield _Share(piece.whole, piece.parameter, partial(_gather, piece, reduction=reduction))
    for part in reduction.held if isinstance(reduction, FullyShardedReduction) else ():
        yield _Share(part.parameter, part.parameter, part.gather)


def _state_of(execution: Execution, stepped: nn.Parameter) -> dict[str, Any]:
    return next((each.state[stepped] for each in execution.update.optimizers if stepped in each.state), {})


def _names_cut(stepped: nn.Parameter, state: dict[str, Any]) -> set[str]:
    """The state that is cut as the parameter is; a piece of one element looks like a single number, others do not."""
    return {
        name
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == stepped.shape
    }


def _on_host(tensor: torch.Tensor, *, is_kept: bool) -> torch.Tensor | None:
    return tensor.cpu() if is_kept else None


def _gather(piece: ShardPiece, value: torch.Tensor, *, reduction: ShardedReduction) -> torch.Tensor:
    mine = torch.zeros(piece.size, dtype=value.dtype, device=piece.whole.device)
    mine[: value.numel()] = value.reshape(-1)
    every = mine.new_empty(reduction.num_replicas * piece.size)
    all_gather_single(every, mine, group=reduction.group)
    return every[: piece.whole.numel()].view(piece.whole.shape)


def cut_state(execution: Execution, parameter: nn.Parameter, *, value: Any) -> Any:
    """What of a state's whole value belongs here."""
    piece, part = execution.update.pieces.get(id(parameter)), execution.model.parts.of(parameter)
    is_cut = isinstance(value, torch.Tensor) and value.shape == execution.model.parts.shape(parameter)
    if not is_cut or (piece is None and part is None):
        return value
    value = value if part is None else part.cut(value)
    return (value if piece is None else piece.cut(value)).to(execution.device, copy=True)
