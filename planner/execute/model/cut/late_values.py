"""Parameters without values (on the meta device): what stands for them while a model is cut, and their values later."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from planner.execute.model.deferred_init import has_deferred_value, make_value, map_memory, require_values
from planner.execute.model.named_tensors import has_names_of_its_own, kept_tensors, take_names_back
from planner.execute.model.weight_conversion import WeightConversion
from planner.execute.model.weight_files import WeightFiles


@contextmanager
def stand_ins_for_values(module: nn.Module) -> Iterator[dict[int, nn.Parameter]]:
    """Meanwhile every parameter without values has some, in next to no memory; gives whose place each takes."""
    originals: dict[int, nn.Parameter] = {}
    stand_ins: dict[int, nn.Parameter] = {}
    source = _StandIns(parameter for parameter in module.parameters() if parameter.is_meta)
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in stand_ins:
                    stand_ins[id(parameter)] = made = source.make(parameter)
                    originals[id(made)] = parameter
                setattr(part, name, stand_ins[id(parameter)])
    try:
        yield originals
    finally:
        put_back(module, originals)


def put_back(module: nn.Module, originals: Mapping[int, nn.Parameter]) -> None:
    """The parameters themselves, in the places of what stood for them."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if id(parameter) in originals:
                setattr(part, name, originals[id(parameter)])


class _StandIns:
    """Numbers of the size of weights, shared by all parameters: the process holds the largest one at most."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._pools: dict[tuple[torch.dtype, bool], torch.Tensor] = {}
        self._largest: dict[tuple[torch.dtype, bool], int] = {}
        for parameter in parameters:
            key = _kind(parameter)
            self._largest[key] = max(self._largest.get(key, 0), parameter.numel())

    def make(self, parameter: nn.Parameter) -> nn.Parameter:
        """In the place of this one."""
        key = _kind(parameter)
        if key not in self._pools:
            self._pools[key] = _fill(self._largest[key], parameter.dtype, is_vector=key[1])
        values = self._pools[key][: parameter.numel()].view(parameter.shape)
        return nn.Parameter(values, requires_grad=parameter.requires_grad)


def make_stand_in(parameter: nn.Parameter, *, seed: int) -> nn.Parameter:
    """One alone, with memory of its own."""
    values = _fill(parameter.numel(), parameter.dtype, is_vector=parameter.dim() < 2, seed=seed)
    return nn.Parameter(values.view(parameter.shape), requires_grad=parameter.requires_grad)


def _kind(parameter: nn.Parameter) -> tuple[torch.dtype, bool]:
    return parameter.dtype, parameter.dim() < 2


def _fill(count: int, dtype: torch.dtype, *, is_vector: bool, seed: int = 0) -> torch.Tensor:
    """Vectors (norms, biases) have numbers near 1, others of some hundredths."""
    if not dtype.is_floating_point:
        return torch.zeros(count, dtype=dtype)
    noise = torch.Generator().manual_seed(count + seed)
    low, high = (0.5, 1.5) if is_vector else (-0.04, 0.04)
    empty = map_memory(count * dtype.itemsize).view(dtype) if count else torch.empty(0, dtype=dtype)
    return empty.uniform_(low, high, generator=noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateValues:
    """Where the values of a model's parameters come from when a layer is made."""

    names: Mapping[int, tuple[str, ...]]
    """All names of a tensor in the model's state dictionary, by its identity."""
    weights: Path | None
    """Files to read them from; None: they are in the parameters, or were noted by `deferred_init`."""
    conversion: WeightConversion | None = None
    """Between the model's names and those of the files."""

    def make(self, layer: nn.Module, *, name: str) -> dict[int, torch.Tensor]:
        """Of a layer's parameters and persistent buffers, by identity; empty for those that have them."""
        if self.weights is None:
            return {id(each): _as_parameter(each, make_value(each)) for each in layer.parameters() if each.is_meta}
        state, read = layer.state_dict(keep_vars=True), dict[str, torch.Tensor]()
        unused = set(getattr(layer, "kept_only", ()))
        with WeightFiles(self.weights, self.conversion) as files:
            for path, tensor in state.items():
                names: Sequence[str] = (path, *self.names.get(id(tensor), ()))
                default = tensor.detach() if path in unused and not tensor.is_meta else None
                value = files.read(names, shape=tensor.shape, layer=name, default=default)
                read[path] = value.to(tensor.dtype, copy=True)
        if has_names_of_its_own(layer, state):
            read = take_names_back(layer, read)
        found: dict[int, torch.Tensor] = {}
        for path, tensor in kept_tensors(layer).items():
            found[id(tensor)] = _as_parameter(tensor, read[path]) if isinstance(tensor, nn.Parameter) else read[path]
        return found


def _as_parameter(like: nn.Parameter, value: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=like.requires_grad)


def find_late_values(
    module: nn.Module, *, weights: Path | None, conversion: WeightConversion | None = None
) -> LateValues:
    """Raises ValueError where nothing says what a parameter's or a buffer's values are."""
    names: dict[int, tuple[str, ...]] = {}
    for name, tensor in kept_tensors(module).items():
        names[id(tensor)] = (*names.get(id(tensor), ()), name)
    unknown = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    for name, parameter in module.named_parameters() if weights is None else ():
        if parameter.is_meta and not has_deferred_value(parameter):
            unknown.append(name)
    require_values(unknown)
    return LateValues(names=names, weights=weights, conversion=conversion)
