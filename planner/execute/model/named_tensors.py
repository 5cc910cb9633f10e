"""The tensors that a layer keeps, by their paths in it, and what its state dictionary makes of them.

Mostly the two are the same. But hooks of a model may say otherwise: torchtitan computes with one matrix for queries,
keys and values, and shows three. What hooks show are copies: filling them would change nothing in the layer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def kept_tensors(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by path, as a state dictionary has them without hooks; a shared one is under
    each of its paths.
    """
    found: dict[str, torch.Tensor] = {}
    for prefix, module in layer.named_modules(remove_duplicate=False):
        buffers = {n: each for n, each in module._buffers.items() if n not in module._non_persistent_buffers_set}
        for name, tensor in (module._parameters | buffers).items():
            if tensor is not None:
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def has_names_of_its_own(layer: nn.Module, state: Mapping[str, Any]) -> bool:
    """Whether a state dictionary of the layer (with `keep_vars`) shows other tensors than the layer keeps."""
    kept = {id(tensor) for tensor in kept_tensors(layer).values()}
    return any(id(tensor) not in kept for tensor in state.values())


def take_names_back(layer: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a state dictionary under the names of hooks has for each path: as `load_state_dict` begins, but nothing is
    loaded, which hooks of sharded layers would not have.
    """
    for prefix, module in layer.named_modules():
        for hook in list(module._load_state_dict_pre_hooks.values()):
            hook(state, f"{prefix}." if prefix else "", {}, True, [], [], [])
    return state


@contextmanager
def standing_in(layer: nn.Module, wholes: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Meanwhile these are parameters of the layer, by path, in the place of what a group holds parts of."""
    places = {path: (layer.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in wholes}
    before = {path: module._parameters[name] for path, (module, name) in places.items()}
    try:
        for path, (module, name) in places.items():
            module._parameters[name] = nn.Parameter(wholes[path], requires_grad=False)
        yield
    finally:
        for path, (module, name) in places.items():
            module._parameters[name] = before[path]
