"""Files of weights under the names of a model's state dictionary, read one tensor at a time.

They are those of transformers: `model.safetensors`, or several and `model.safetensors.index.json` that says which name
is where; names that differ in memory are converted (`weight_conversion.py`). Any file of `torch.save` is read as well.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from planner.execute.model.weight_conversion import FileWeights, WeightConversion


class WeightFiles:
    """Where each name is; a tensor is read when it is asked for, of safetensors it alone."""

    def __init__(self, path: Path, conversion: WeightConversion | None = None) -> None:
        """`conversion`: of a model whose files have other names. Raises ValueError if there are no weights there."""
        self.path, self.files = path, dict[str, Path]()
        self._opened: dict[Path, Any] = {}
        self._stack = ExitStack()
        for file, wanted in _find_files(path).items():
            names = [name for name in self._open(file).keys() if wanted is None or name in wanted]  # noqa: SIM118
            if twice := next((name for name in names if name in self.files), None):
                raise ValueError(f"{file}: {twice} is also in {self.files[twice].name}; keep the weights of one model")
            self.files |= dict.fromkeys(names, file)
        self._conversion, self._made = conversion, dict[str, torch.Tensor]()
        self._groups: Mapping[str, FileWeights] = {}
        if conversion is not None:
            self._groups = conversion.find(path, self.files, shape=self._shape)

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()
        self._opened.clear()
        self._made.clear()

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            try:
                self._opened[file] = _open(file, stack=self._stack)
            except Exception as error:  # each library has its own
                raise ValueError(
                    f"{file}: cannot be read as weights ({str(error)[:80]}); give whole files, of tensors by name"
                ) from None
        return self._opened[file]

    def read(
        self, names: Sequence[str], *, shape: Sequence[int], layer: str, default: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The tensor under the first of the names that is there.

        `layer`: for the message. Raises ValueError where none is there and no default, or where it has another shape.
        """
        known: Mapping[str, Any] = self.files if self._conversion is None else self._groups
        found = next((name for name in names if name in known), None)
        if found is None and default is not None:
            return default
        if found is None:
            raise ValueError(f"{self.path}: {names[0]} of layer {layer!r} is not there; give the weights of this model")
        value = self._read(found) if self._conversion is None else self._convert(found)
        if tuple(value.shape) != tuple(shape):
            raise ValueError(
                f"{self.path}: {found} has shape {tuple(value.shape)}, but the model needs {tuple(shape)}; "
                "give the weights of this model"
            )
        return value

    def _read(self, name: str) -> torch.Tensor:
        opened = self._open(self.files[name])
        value: torch.Tensor = opened[name] if isinstance(opened, dict) else opened.get_tensor(name)
        return value

    def _shape(self, name: str) -> Sequence[int]:
        opened = self._open(self.files[name])
        shape: Sequence[int] = opened[name].shape if isinstance(opened, dict) else opened.get_slice(name).get_shape()
        return shape

    def _convert(self, name: str) -> torch.Tensor:
        """A tensor of the model; what else is made of the same tensors is kept until another one is wanted."""
        assert self._conversion is not None
        if name not in self._made:
            self._made = self._conversion.convert(self._groups[name], self._read)
        return self._made[name]


def _open(file: Path, *, stack: ExitStack) -> Any:
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        return stack.enter_context(safe_open(str(file), framework="pt"))
    found = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(found, dict):
        raise TypeError(f"holds a {type(found).__name__}")
    return found


def _find_files(path: Path) -> Mapping[Path, Collection[str] | None]:
    """By file the names that are read of it; None: all."""
    if path.is_file():
        return {path: None}
    for ending in (".safetensors", ".bin"):
        indices = sorted(path.glob(f"*{ending}.index.json"))
        alone = [file for file in (path / f"model{ending}",) if indices and file.exists()]
        if len(both := [*indices, *alone]) > 1:
            raise ValueError(f"{path}: {both[0].name} and {both[1].name} may state different weights; keep one of them")
        if indices:
            return _read_index(indices[0])
        if found := sorted(path.glob(f"*{ending}")):
            return dict.fromkeys(found)
    raise ValueError(f"{path}: contains no weights; give a file of safetensors or torch, or a folder of them")


def _read_index(index: Path) -> Mapping[Path, Collection[str]]:
    named: dict[Path, list[str]] = {}
    try:
        for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
            named.setdefault(index.parent / file, []).append(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: is no index of weights ({error}); give the one beside them") from None
    return named
