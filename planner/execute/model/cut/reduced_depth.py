"""A model that is too large to be trained for a trial, or has no weights yet: the same model with fewer blocks."""

import copy
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from planner.execute.model.cut.hooks import carry_weight_hooks, find_hooks
from planner.execute.model.cut.late_values import make_stand_in

LARGEST = 2**29
"""Bytes of weights of a model that is trained whole for a trial; it holds them five times."""

_LISTS = nn.ModuleList, nn.ModuleDict, nn.Sequential

KEPT = 2, 1
"""Blocks of a list that stay, of those that are alike: two, for what passes from one to the next, if they fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReducedModel:
    """What is trained for a trial in the place of a model."""

    module: nn.Module | None
    """The model itself, or one with fewer blocks and made-up weights; None: even that is too large."""
    left_out: tuple[str, ...]
    """Paths of blocks that it is without, or of everything."""


def reduce_model(
    module: nn.Module, *, blocks: Sequence[str], largest: int = LARGEST, most: int | None = None
) -> _ReducedModel:
    """`blocks`: paths of those that it is cut at; `largest`: bytes of weights of a whole model;
    `most`: of one with fewer blocks, by default a sixteenth of this machine's memory if that is more.
    """
    is_small = _num_bytes(module.parameters()) <= largest
    if is_small and not any(each.is_meta for each in module.parameters()):
        return _ReducedModel(module=module, left_out=())
    most = max(largest, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16) if most is None else most
    choices = [[]] if is_small else [_find_alike(module, blocks, num_kept=kept) for kept in KEPT]
    for left_out in choices:
        weights = _weights_without(module, {module.get_submodule(path) for path in left_out})
        if _num_bytes(weights) <= most:
            return _ReducedModel(module=_make(module, left_out=left_out, weights=weights), left_out=tuple(left_out))
    return _ReducedModel(module=None, left_out=tuple(path for path, _ in module.named_children()))


def _make(module: nn.Module, *, left_out: Sequence[str], weights: Sequence[nn.Parameter]) -> nn.Module:
    gone = {module.get_submodule(path) for path in left_out}
    memo: dict[int, Any] = {id(part): nn.Identity() for part in gone}
    for number, weight in enumerate(weights):
        if weight.is_meta:
            memo[id(weight)] = make_stand_in(weight, seed=number)
    made: nn.Module = copy.deepcopy(module, memo)
    carry_weight_hooks(module, made)
    names: dict[str, set[str]] = {}
    for path in left_out:
        home, _, name = path.rpartition(".")
        names.setdefault(home, set()).add(name)
    for home, gone_names in names.items():
        _drop(made.get_submodule(home), names=gone_names)
    return made


def _num_bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(each.numel() * each.dtype.itemsize for each in parameters)


def _weights_without(module: nn.Module, gone: set[nn.Module]) -> list[nn.Parameter]:
    """The parameters of all modules, some and what is below them aside."""
    found: dict[int, nn.Parameter] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if part not in gone:
            found |= {id(each): each for each in part.parameters(recurse=False)}
            waiting += part.children()
    return list(found.values())


def _find_alike(module: nn.Module, blocks: Sequence[str], *, num_kept: int) -> list[str]:
    """Blocks that stand behind others of their list that are alike."""
    seen: dict[Any, int] = {}
    found = []
    for path in blocks:
        home = path.rpartition(".")[0]
        if isinstance(module.get_submodule(home), _LISTS):
            key = home, _kind(module.get_submodule(path))
            seen[key] = seen.get(key, 0) + 1
            found += [path] if seen[key] > num_kept else []
    return found


def _kind(block: nn.Module) -> str:
    """Text that is the same for blocks that are alike: classes, settings, weights, hooks."""
    parts = [
        f"{path} {type(part).__qualname__} {part.training} {part.extra_repr()}" for path, part in block.named_modules()
    ]
    weights = [f"{p} {tuple(w.shape)} {w.dtype} {w.requires_grad}" for p, w in block.named_parameters()]
    buffers = [f"{p} {tuple(b.shape)} {b.dtype}" for p, b in block.named_buffers()]
    return "\n".join((*parts, *weights, *buffers, *(text for _, text in find_hooks(block))))


def _drop(container: nn.Module, *, names: set[str]) -> None:
    """Elements of a list, whose others close up."""
    kept = [(name, part) for name, part in container._modules.items() if name not in names]
    if isinstance(container, nn.ModuleList):
        kept = [(str(number), part) for number, (_, part) in enumerate(kept)]
    container._modules = OrderedDict(kept)
