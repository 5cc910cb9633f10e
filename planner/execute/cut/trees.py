"""What a recorded call is given: tensors as references, numbers that grow with the samples, and all else as it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor."""

    number: int


@dataclass(frozen=True, slots=True)
class ScaledLength:
    """Stands for a whole number that depends on how many samples there are: `factor` x samples + `offset`."""

    factor: int
    offset: int


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """Stands for the device that the layer is on."""


@dataclass(frozen=True, slots=True)
class OwnMode:
    """Stands for whether the layer is being trained."""


def change_leaves(tree: Any, change: Change) -> Any:
    """The same tree with every leaf changed; slices, and whatever torch's trees know, are gone through."""
    if isinstance(tree, slice):
        return slice(*(change_leaves(part, change) for part in (tree.start, tree.stop, tree.step)))
    if type(tree) is torch.Size:
        return tuple(change_leaves(part, change) for part in tree)
    leaves, spec = _pytree.tree_flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return change(tree)
    return _pytree.tree_unflatten([change_leaves(leaf, change) for leaf in leaves], spec)


def leaves_of(tree: Any) -> Iterator[Any]:
    """All leaves in order."""
    found: list[Any] = []
    change_leaves(tree, found.append)
    return iter(found)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """All tensors in order."""
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]


def refs_of(tree: Any) -> list[int]:
    """The numbers of all tensors that are referred to, in order."""
    return [leaf.number for leaf in leaves_of(tree) if isinstance(leaf, Ref)]


def merge_trees(first: Any, second: Any, *, counts: tuple[int, int]) -> Any:
    """One tree for two recordings with so many samples each; raises ValueError where they differ otherwise."""
    ones, others = list(leaves_of(first)), list(leaves_of(second))
    if len(ones) != len(others):
        raise ValueError("a call is given other things with other numbers of samples")
    merged = iter([_merge(one, other, counts=counts) for one, other in zip(ones, others, strict=True)])
    return change_leaves(first, lambda _: next(merged))


def _merge(one: Any, other: Any, *, counts: tuple[int, int]) -> Any:
    if type(one) is not type(other):
        raise ValueError(f"a call is given {one!r} or {other!r}, as there are more samples or fewer")
    if isinstance(one, int) and not isinstance(one, bool) and one != other:
        factor, rest = divmod(other - one, counts[1] - counts[0])
        if rest:
            raise ValueError(f"a call is given {one} for {counts[0]} samples and {other} for {counts[1]}")
        return ScaledLength(factor, one - factor * counts[0])
    if isinstance(one, bool | float | str | Ref) and one != other and not (one != one and other != other):
        raise ValueError(f"a call is given {one!r} or {other!r}, as there are more samples or fewer")
    return one
