"""Weights in files of transformers whose names and shapes differ in memory: experts fused, projections split.

All conversions are transformers' own: those of `from_pretrained`, and the reverse ones of `save_pretrained`.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """Tensors of files that become one or several tensors of the model."""

    name: str
    """By which transformers calls the conversion: the model's name of the first."""
    converter: Any
    """transformers' conversion, not used yet; None where the tensor is only called otherwise."""
    sources: tuple[tuple[str, str], ...]
    """The pattern that each tensor of the files matches, and its name there, in order."""


class WeightConversion:
    """Between a model's own state dictionary and files of it."""

    def __init__(self, model: nn.Module, transforms: Sequence[Any]) -> None:
        """`model`: as it is in memory, without values; `transforms`: what loading changes, in order."""
        self._model: Any = model
        self._transforms = transforms
        self._found: dict[Path, dict[str, FileWeights]] = {}

    def find(
        self, path: Path, names: Iterable[str], *, shape: Callable[[str], Sequence[int]]
    ) -> Mapping[str, FileWeights]:
        """By the model's names, what makes a tensor of the files at `path`; `shape`: of a tensor there.

        Once files are read, weights are saved in the form that they have there, as transformers does.
        """
        if path not in self._found:
            groups = self._group(names)
            self._found[path] = {name: group for group in groups for name in self._targets(group, shape=shape)}
            self._model._weight_conversions = [each for each in self._transforms if each.was_used()]
        return self._found[path]

    def _group(self, names: Iterable[str]) -> list[FileWeights]:
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        state, prefix = self._model.state_dict(), self._model.base_model_prefix
        renamings = [each for each in self._transforms if isinstance(each, WeightRenaming)]
        converters = [each for each in self._transforms if isinstance(each, WeightConverter)]
        of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        sources: dict[str, list[tuple[str, str]]] = {}
        used: dict[str, Any] = {}
        for name in sorted(names, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, state)
            if target not in state and name in state:
                target, pattern = name, None
            used.setdefault(target, None if pattern is None else of_pattern[pattern])
            sources.setdefault(target, []).append((pattern or name, name))
        return [
            FileWeights(name=target, converter=used[target], sources=tuple(found))
            for target, found in sources.items()
            if target in state
        ]

    def _targets(self, group: FileWeights, *, shape: Callable[[str], Sequence[int]]) -> list[str]:
        """The model's names of what a group becomes."""
        if group.converter is None:
            return [group.name]
        return list(self.convert(group, lambda name: torch.empty(tuple(shape(name)), device="meta")))

    def convert(self, group: FileWeights, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of the model that a group becomes, by their names; `read`: a tensor of the files.

        Raises ValueError where transformers cannot convert it.
        """
        if group.converter is None:
            return {group.name: read(group.sources[0][1])}
        converter = copy.deepcopy(group.converter)
        for pattern, name in group.sources:
            converter.add_tensor(group.name, name, pattern, read(name))
        try:
            made = converter.convert(group.name, model=self._model, config=self._model.config)
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{group.sources[0][1]} and {len(group.sources) - 1} others cannot be converted to {group.name} "
                f"({str(error)[:200]}); give the weights of this model"
            ) from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def revert(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of the model as they stand in files."""
        from transformers.core_model_loading import revert_weight_conversion

        reverted: dict[str, torch.Tensor] = revert_weight_conversion(self._model, dict(tensors))
        return reverted

    def find_torn(self, names: Iterable[str]) -> str:
        """The first tensor of a file that takes more weights than those of `names`; empty if none does."""
        state = self._model.state_dict()
        whole = self.revert(state)
        part = self.revert({name: state[name] for name in names if name in state})
        return next((name for name, value in part.items() if name not in whole or whole[name].shape != value.shape), "")

    def save_config(self, folder: Path) -> None:
        """Write what `from_pretrained` needs beside the weights."""
        config = copy.deepcopy(self._model.config)
        config.architectures = [type(self._model).__name__]
        config.dtype = str(self._model.dtype).removeprefix("torch.")
        config.save_pretrained(folder)


def conversion_of(model: nn.Module) -> WeightConversion | None:
    """Of a model of transformers; None for others, and where transformers keeps weights as they are in memory."""
    library = sys.modules.get("transformers")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return None
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # before transformers 5
        return None
    return WeightConversion(_without_values(model), get_model_conversion_mapping(model))


def _without_values(model: nn.Module) -> nn.Module:
    """A copy on the meta device."""
    memo: dict[int, Any] = {id(each): nn.Parameter(_empty(each), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, memo | {id(each): _empty(each) for each in model.buffers()})


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta", requires_grad=False)
