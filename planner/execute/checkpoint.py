"""Saves and loads weights, buffers and optimizer state by layer, so that another plan can go on where one left off.

Written with torch.distributed.checkpoint: every process writes its own layers (of several replicas the first), and
reads those that it has now. Keys are `weights/layer:path` (parameters and persistent buffers), `buffers/layer:path`
(the others), `optimizer/layer:path/name`, `settings/layer:path` (what the optimizer's group is told), `update/name`
(steps taken, loss scale), `random/rank` and `iteration`.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from planner.execute.execution import Execution
from planner.execute.sharded_state import cut_state, gather_states

_ITERATION = "iteration"
_PREFIX = "step-"


def save_checkpoint(execution: Execution, folder: Path, *, iteration: int) -> None:
    """Write everything after `iteration` iterations; a collective call.

    Raises ValueError, on every process the same, while gradients accumulate: they are not part of it.
    """
    accumulate = execution.training.accumulate
    if iteration % accumulate:
        raise ValueError(
            f"a checkpoint after {iteration} iterations is in the middle of a step of {accumulate}; save after a "
            f"multiple of {accumulate}"
        )
    numbers = [stage.stage_index for stage in execution.stages]
    first = [name for n in numbers if execution.is_in_first(n) for name in execution.plan.stages[n].layers]
    layers = [name for n in numbers if execution.is_keeper(n) for name in execution.plan.stages[n].layers]
    state: dict[str, Any] = dict(_whole_weights(execution, first))
    state |= dict(_optimizer_state(execution, first, whole=gather_states(execution)))
    state = {key: value for key, value in state.items() if _layer_of(key) in layers}
    told = execution.update.settings()
    state |= {f"settings/{name}": told[name] for name in told if name.partition(":")[0] in layers}
    state |= {
        f"update/{name}": torch.tensor(value, dtype=torch.float64) for name, value in _update_state(execution).items()
    }
    state |= {f"random/{execution.rank}": torch.get_rng_state()}
    state[_ITERATION] = torch.tensor(iteration)
    execution.log.note("the writing of a checkpoint")
    part = folder.with_name(f".{folder.name}.part")
    if execution.rank == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
    distributed.barrier()
    save(state, storage_writer=FileSystemWriter(part))
    if execution.rank == 0:
        _put_in_place(part, folder)
    distributed.barrier()
    execution.log.note("")


def _put_in_place(part: Path, folder: Path) -> None:
    """A folder of that name is a whole checkpoint at any time; an older one goes when the new one is there."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_numbered(execution: Execution, folder: Path, *, iteration: int, num_kept: int) -> None:
    """Write `folder/step-00000042`, and take away all but the newest `num_kept`; a collective call."""
    save_checkpoint(execution, folder / f"{_PREFIX}{iteration:08}", iteration=iteration)
    if execution.rank == 0:
        for old in _numbered(folder)[:-num_kept]:
            shutil.rmtree(old, ignore_errors=True)


def find_newest(folder: Path) -> Path | None:
    """The folder itself, if it is a checkpoint, or the newest in it; None if there is none."""
    if (folder / ".metadata").exists():
        return folder
    return next(reversed(_numbered(folder)), None)


def _numbered(folder: Path) -> list[Path]:
    found = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    return [path for path in found if (path / ".metadata").exists()]


def _update_state(execution: Execution) -> dict[str, float]:
    """Float64 holds every count exactly."""
    return execution.update.state()


def load_checkpoint(execution: Execution, folder: Path) -> int:
    """Read everything that this process holds; a collective call. Returns how many iterations had been run.

    Raises ValueError if a weight is missing or has another shape: the checkpoint is that of another model.
    """
    reader = FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    held = [name for stage in execution.stages for name in execution.plan.stages[stage.stage_index].layers]
    places = _weights(execution, held)
    state: dict[str, Any] = {key: _place_for(execution, tensor) for key, tensor in places.items()}
    state[_ITERATION] = torch.tensor(0)
    for key, tensor in state.items():
        found = stored.get(key)
        if not isinstance(found, TensorStorageMetadata) or found.size != tensor.shape:
            has = f"has shape {tuple(found.size)}" if isinstance(found, TensorStorageMetadata) else "is not there"
            raise ValueError(f"checkpoint {folder}: {key} {has}, but the model wants {tuple(tensor.shape)}")
    kept = _kept_optimizer_state(execution, held, stored=stored)
    state |= {key: value for key, (_, _, value) in kept.items()}
    mine = f"random/{execution.rank}"
    more: dict[str, Any] = {
        f"update/{name}": torch.tensor(value, dtype=torch.float64) for name, value in _update_state(execution).items()
    }
    more |= {f"settings/{name}": {} for name, _ in execution.update.trained} | {mine: torch.get_rng_state()}
    state |= {key: place for key, place in more.items() if key in stored}
    load(state, storage_reader=reader)
    for key, tensor in places.items():
        if (part := execution.parts.of(tensor)) is not None:
            part.parameter.detach().copy_(part.cut(state[key]))
    for key, (parameter, name, _) in kept.items():
        if (optimizer := execution.update.optimizer_of(parameter)) is not None:
            stepped = execution.update.stepped_for(parameter)
            optimizer.state[stepped][name] = cut_state(execution, parameter, value=state[key])
    if all(f"update/{name}" in state for name in _update_state(execution)):
        execution.update.go_on({name: float(state[f"update/{name}"]) for name in _update_state(execution)})
    told = {key.removeprefix("settings/"): value for key, value in state.items() if key.startswith("settings/")}
    execution.update.apply_settings(told)
    if mine in state:
        torch.set_rng_state(state[mine])
    execution.number = int(state[_ITERATION])
    return execution.number


def _layer_of(key: str) -> str:
    return key.partition("/")[2].partition(":")[0]


def _place_for(execution: Execution, tensor: torch.Tensor) -> torch.Tensor:
    """What loading fills: the tensor itself, or room on the host for the whole of which a group holds parts."""
    part = execution.parts.of(tensor)
    return tensor if part is None else torch.empty(part.shape, dtype=tensor.dtype)


def _whole_weights(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """As `_weights`, put together; a collective call of the groups that hold parts."""
    for key, tensor in _weights(execution, layers).items():
        part = execution.parts.of(tensor)
        yield key, tensor if part is None else part.gather(tensor.detach()).cpu()


def _weights(execution: Execution, layers: Sequence[str]) -> dict[str, torch.Tensor]:
    """Parameters and buffers; the tensors themselves, so that loading fills them."""
    found: dict[str, torch.Tensor] = {}
    for name in layers:
        state = dict(execution.parts.plain(name, list(execution.layer(name).state_dict().items())))
        found |= {f"weights/{name}:{path}": tensor for path, tensor in state.items()}
        buffers = execution.layer(name).named_buffers()
        found |= {f"buffers/{name}:{path}": tensor for path, tensor in buffers if path not in state}
    return found


def _parameters(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, nn.Parameter]]:
    for name in layers:
        for path, parameter in execution.held(name):
            if parameter.requires_grad:
                yield f"optimizer/{name}:{path}/", parameter


def _optimizer_state(
    execution: Execution, layers: Sequence[str], *, whole: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """`whole`: of parameters whose state is sharded, by their identity. A collective call of the groups that hold
    parts.
    """
    for prefix, parameter in _parameters(execution, layers):
        optimizer = execution.update.optimizer_of(parameter)
        held = {} if optimizer is None else optimizer.state.get(parameter, {})
        part = execution.parts.of(parameter)
        for name, value in whole.get(id(parameter), held).items():
            if value is not None:
                is_cut = part is not None and isinstance(value, torch.Tensor) and value.shape == parameter.shape
                yield prefix + name, part.gather(value).cpu() if part is not None and is_cut else value


def _kept_optimizer_state(
    execution: Execution, layers: Sequence[str], *, stored: Any
) -> dict[str, tuple[nn.Parameter, str, Any]]:
    """What is stored for the parameters here, with a place for every tensor: a new optimizer has none yet."""
    kept = {}
    for prefix, parameter in _parameters(execution, layers):
        for key, found in stored.items():
            if key.startswith(prefix):
                is_tensor = isinstance(found, TensorStorageMetadata)
                is_whole = id(parameter) not in execution.update.pieces and execution.parts.of(parameter) is None
                is_here = is_whole and is_tensor and found.size == parameter.shape
                device = execution.device if is_here else torch.device("cpu")
                place = torch.empty(found.size, dtype=found.properties.dtype, device=device) if is_tensor else None
                kept[key] = parameter, key.removeprefix(prefix), place
    return kept
