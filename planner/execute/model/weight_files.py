"""Files of weights under the names of a model's state dictionary, read one tensor at a time.

They are those of transformers: `model.safetensors`, or several and `model.safetensors.index.json` that says which name
is where; names that differ in memory are converted (`weight_conversion.py`). Any file of `torch.save` is read as well.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
        for file in _find_files(path):
            self.files |= dict.fromkeys(self._open(file).keys(), file)
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
            if file.suffix == ".safetensors":
                from safetensors import safe_open

                self._opened[file] = self._stack.enter_context(safe_open(str(file), framework="pt"))
            else:
                self._opened[file] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
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


def _find_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for ending in (".safetensors", ".bin"):
        index = next(iter(sorted(path.glob(f"*{ending}.index.json"))), None)
        if index is not None:
            yield from (path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values())))
            return
        if found := sorted(path.glob(f"*{ending}")):
            yield from found
            return
    raise ValueError(f"{path}: contains no weights; give a file of safetensors or torch, or a folder of them")
