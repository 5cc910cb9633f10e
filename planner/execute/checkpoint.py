"""Saves and loads weights, buffers and optimizer state by layer, so that another plan can go on where one left off.

Written with torch.distributed.checkpoint: every process writes its own layers (of several replicas the first), and
reads those that it has now. Keys are `weights/layer:path`, `optimizer/layer:path/name` and `iteration`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from planner.execute.execution import Execution

_ITERATION = "iteration"


def save_checkpoint(execution: Execution, folder: Path, *, iteration: int) -> None:
    """Write everything after `iteration` iterations; a collective call."""
    kept = [stage.stage_index for stage in execution.stages if execution.is_keeper(stage.stage_index)]
    layers = [name for stage in kept for name in execution.plan.stages[stage].layers]
    state = _weights(execution, layers) | dict(_optimizer_state(execution, layers))
    state[_ITERATION] = torch.tensor(iteration)
    save(state, storage_writer=FileSystemWriter(folder))


def load_checkpoint(execution: Execution, folder: Path) -> int:
    """Read everything that this process holds; a collective call. Returns how many iterations had been run.

    Raises ValueError if a weight is missing or has another shape: the checkpoint is that of another model.
    """
    reader = FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    held = [name for stage in execution.stages for name in execution.plan.stages[stage.stage_index].layers]
    state: dict[str, Any] = _weights(execution, held) | {_ITERATION: torch.tensor(0)}
    for key, tensor in state.items():
        found = stored.get(key)
        if not isinstance(found, TensorStorageMetadata) or found.size != tensor.shape:
            has = f"has shape {tuple(found.size)}" if isinstance(found, TensorStorageMetadata) else "is not there"
            raise ValueError(f"checkpoint {folder}: {key} {has}, but the model wants {tuple(tensor.shape)}")
    kept = _kept_optimizer_state(execution, held, stored=stored)
    state |= {key: value for key, (_, _, value) in kept.items()}
    load(state, storage_reader=reader)
    for key, (parameter, name, _) in kept.items():
        assert execution.optimizer is not None
        execution.optimizer.state[parameter][name] = state[key]
    return int(state[_ITERATION])


def _weights(execution: Execution, layers: Sequence[str]) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers; the tensors themselves, so that loading fills them."""
    return {
        f"weights/{name}:{path}": tensor
        for name in layers
        for path, tensor in execution.layer(name).state_dict().items()
    }


def _parameters(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, nn.Parameter]]:
    for name in layers:
        for path, parameter in execution.layer(name).named_parameters():
            if parameter.requires_grad:
                yield f"optimizer/{name}:{path}/", parameter


def _optimizer_state(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if execution.optimizer is not None:
        for prefix, parameter in _parameters(execution, layers):
            for name, value in execution.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    yield prefix + name, value


def _kept_optimizer_state(
    execution: Execution, layers: Sequence[str], *, stored: Any
) -> dict[str, tuple[nn.Parameter, str, Any]]:
    """What is stored for the parameters here, with a place for every tensor: a new optimizer has none yet."""
    kept = {}
    for prefix, parameter in _parameters(execution, layers):
        for key, found in stored.items():
            if key.startswith(prefix):
                is_tensor = isinstance(found, TensorStorageMetadata)
                device = execution.device if is_tensor and found.size == parameter.shape else torch.device("cpu")
                place = torch.empty(found.size, dtype=found.properties.dtype, device=device) if is_tensor else None
                kept[key] = parameter, key.removeprefix(prefix), place
    return kept
