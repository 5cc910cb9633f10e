"""What a recorded call is given: tensors as references, numbers that grow with the samples, and all else as it is."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor."""

    number: int


Sizes = tuple[int, ...]
"""How many samples there are, and every length that differs from microbatch to microbatch."""


@dataclass(frozen=True, slots=True)
class ScaledLength:
    """Stands for a whole number that depends on the sizes: a sum of `factors`, each times some of the sizes.

    The factor at place k belongs to the product of those sizes whose bits are set in k.
    """

    factors: tuple[int, ...]

    def at(self, sizes: Sizes) -> int:
        """The number for these sizes."""
        chosen = ([n for bit, n in enumerate(sizes) if k >> bit & 1] for k in range(len(self.factors)))
        return sum(factor * math.prod(each) for factor, each in zip(self.factors, chosen, strict=True))

    @property
    def needs(self) -> set[int]:
        """The places of the sizes that it depends on."""
        used = [k for k, factor in enumerate(self.factors) if factor]
        return {bit for bit in range(len(self.factors).bit_length() - 1) if any(k >> bit & 1 for k in used)}

    def solve(self, number: int) -> int:
        """The only size that it depends on, of the number."""
        (bit,) = self.needs
        return (number - self.factors[0]) // self.factors[1 << bit]


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """Stands for the device that the layer is on."""


@dataclass(frozen=True, slots=True)
class OwnMode:
    """Stands for whether the layer is being trained."""


def change_leaves(tree: Any, change: Change) -> Any:
    """The same tree with every leaf changed; slices, dataclasses, and whatever torch's trees know, are gone through."""
    if isinstance(tree, slice):
        return slice(*(change_leaves(part, change) for part in (tree.start, tree.stop, tree.step)))
    if type(tree) is torch.Size:
        return tuple(change_leaves(part, change) for part in tree)
    leaves, spec = _pytree.tree_flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return change(tree) if (parts := _parts_of(tree)) is None else _with_parts(tree, change_leaves(parts, change))
    return _pytree.tree_unflatten([change_leaves(leaf, change) for leaf in leaves], spec)


def _parts_of(tree: Any) -> dict[str, Any] | None:
    """The fields of a dataclass that are all it has, and of which some hold tensors; None for everything else."""
    if isinstance(tree, type | Ref | ScaledLength | OwnDevice | OwnMode) or not is_dataclass(tree):
        return None
    parts = {field.name: getattr(tree, field.name) for field in fields(tree)}
    holds_tensors = any(isinstance(leaf, torch.Tensor | Ref) for leaf in leaves_of(parts))
    return parts if holds_tensors and set(getattr(tree, "__dict__", ())) <= set(parts) else None


def _with_parts(tree: Any, parts: dict[str, Any]) -> Any:
    made = copy.copy(tree)
    for name, value in parts.items():
        object.__setattr__(made, name, value)  # a frozen one has none of its own
    return made


def leaves_of(tree: Any) -> Iterator[Any]:
    """Leaves of nested tuples, lists and dictionaries, depth first."""
    found: list[Any] = []
    change_leaves(tree, found.append)
    return iter(found)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Tensors among the leaves, depth first."""
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]


def refs_of(tree: Any) -> list[int]:
    """The numbers of all tensors that are referred to, in order."""
    return [leaf.number for leaf in leaves_of(tree) if isinstance(leaf, Ref)]


def merge_trees(trees: Sequence[Any], *, base: Sizes) -> Any:
    """One tree for recordings with the sizes of `base`, each larger by one where the recording's number has its bit.

    Raises ValueError where they differ otherwise; without a base, where they differ at all.
    """
    rows = [list(leaves_of(tree)) for tree in trees]
    if len(set(map(len, rows))) > 1:
        raise ValueError("a call gets other kinds of arguments for other numbers of samples or lengths")
    merged = iter([_merge(leaves, base=base) for leaves in zip(*rows, strict=True)])
    return change_leaves(trees[0], lambda _: next(merged))


def _merge(leaves: Sequence[Any], *, base: Sizes) -> Any:
    first = leaves[0]
    if all(type(each) is type(first) for each in leaves):
        if not isinstance(first, bool | int | float | str | Ref) or all(_is_same(first, each) for each in leaves):
            return first
        if base and isinstance(first, int) and not isinstance(first, bool):
            return ScaledLength(_factors(leaves, base=base))
    other = next(each for each in leaves if type(each) is not type(first) or not _is_same(first, each))
    raise ValueError(f"a call is given {first!r} or {other!r}, as there are more samples or fewer, or other lengths")


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def _factors(numbers: Sequence[int], *, base: Sizes) -> tuple[int, ...]:
    """Of the sum of products that has these numbers, size after size: the slope, and what is left without it."""
    found = list(numbers)
    for bit, size in enumerate(base):
        for place in range(len(found)):
            if place >> bit & 1:
                found[place] -= found[place ^ 1 << bit]
                found[place ^ 1 << bit] -= found[place] * size
    return tuple(found)
