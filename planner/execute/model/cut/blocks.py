"""Where a model is cut: at the elements of its lists of blocks, each of which takes what the one before it gives."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planner.execute.model.cut.trees import tensors_of

_LISTS = (nn.ModuleList, nn.ModuleDict)
"""What blocks are kept in: by place, or by name (torchtitan)."""

_MOST = 0.5
"""A list inside a block is opened if it holds at least this part of the block's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The modules that become layers, and those around them."""

    opened: set[nn.Module]
    """Gone into; everything else stays whole."""
    lists: dict[str, str]
    """Per path of a block the path of the list that it is in."""


def find_blocks(module: nn.Module, arguments: Any) -> Blocks:
    """Run the model once and see which lists are chains; without any, its children are the blocks."""
    paths = {part: path for path, part in module.named_modules()}
    met = _meetings(module, arguments)
    chains = {part for part in paths if _is_chain(part, met)}
    lists: dict[str, str] = {}
    if type(module).forward is not nn.Sequential.forward:
        lists = dict(_elements(module, chains, paths=paths, inside=None))
    if not lists:
        lists = dict.fromkeys(_children(module, paths), "")
    above = {""} | {".".join(block.split(".")[:depth]) for block in lists for depth in range(1, block.count(".") + 1)}
    return Blocks(opened={part for part, path in paths.items() if path in above}, lists=lists)


def _children(module: nn.Module, paths: dict[nn.Module, str]) -> Iterator[str]:
    """The modules below, those in lists one by one."""
    for child in module.children():
        if type(child) is nn.Sequential or isinstance(child, _LISTS):
            yield from _children(child, paths)
        else:
            yield paths[child]


def _elements(
    part: nn.Module, chains: set[nn.Module], *, paths: dict[nn.Module, str], inside: nn.Module | None
) -> Iterator[tuple[str, str]]:
    """The blocks below a module with their lists, in order; `inside`: the block that it belongs to."""
    for child in part.children():
        if child in chains and (inside is None or _fills(child, inside)):
            for element in child.children():
                yield from _blocks_of(element, chains, paths=paths, home=paths[child])
        else:
            yield from _elements(child, chains, paths=paths, inside=inside)


def _blocks_of(
    element: nn.Module, chains: set[nn.Module], *, paths: dict[nn.Module, str], home: str
) -> Iterator[tuple[str, str]]:
    """An element of a list: its own elements, those of the list that it mainly is, or the element itself."""
    if type(element) is nn.Sequential and element in chains:
        for each in element.children():
            yield from _blocks_of(each, chains, paths=paths, home=paths[element])
    else:
        yield from list(_elements(element, chains, paths=paths, inside=element)) or [(paths[element], home)]


def _fills(chain: nn.Module, block: nn.Module) -> bool:
    """Whether a list is most of the block that it is in: repeated, and with most of the weights."""
    kinds = {type(element) for element in chain.children()}
    if any(issubclass(kind, nn.Sequential) for kind in kinds):
        return False  # a convolution with its norm, say
    return len(kinds) == 1 and _num_weights(chain) >= _MOST * _num_weights(block)


def _num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _is_chain(part: nn.Module, met: dict[nn.Module, list[Any]]) -> bool:
    """Whether its elements are called once each, in order, and each is given something of the one before it."""
    elements = list(part.children())
    if type(part) is nn.Sequential:
        return len(elements) > 1 and all(len(met.get(element, ())) == 1 for element in elements)
    if not isinstance(part, _LISTS) or len(elements) < 2:
        return False
    calls: Sequence[Any] = [met.get(element, []) for element in elements]
    if any(len(call) != 1 for call in calls):
        return False
    return all(set(before[0][1]) & set(after[0][0]) for before, after in itertools.pairwise(calls))


def _meetings(module: nn.Module, arguments: Any) -> dict[nn.Module, list[Any]]:
    """Per module and call the identities of the tensors that it was given, and of those that it gave."""
    met: dict[nn.Module, list[Any]] = {}
    kept: list[torch.Tensor] = []  # so that no other tensor gets the identity of one

    def told(part: nn.Module, args: Any, named: Any, result: Any) -> None:
        given, made = tensors_of((args, named)), tensors_of(result)
        kept.extend((*given, *made))
        met.setdefault(part, []).append(([id(t) for t in given], [id(t) for t in made]))

    handles = [part.register_forward_hook(told, with_kwargs=True) for part in module.modules()]
    try:
        module(*arguments[0], **arguments[1])
    finally:
        for handle in handles:
            handle.remove()
    return met
