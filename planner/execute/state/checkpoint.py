"""Saves and loads weights, buffers and optimizer state by layer, so that another plan can continue where one left off.

Written with torch.distributed.checkpoint: every process writes its own layers (of several replicas the first), and
reads those that it has now. Keys are `weights/layer:path` (parameters and persistent buffers), `buffers/layer:path`
(the others), `optimizer/layer:path/name`, `settings/layer:path` (what the optimizer's group is told), `update/name`
(steps taken, loss scale), `random/rank` and `iteration`.
"""

import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from planner.execute.model.named_tensors import kept_tensors
from planner.execute.parallel.process_groups import gather
from planner.execute.run.execution import Execution
from planner.execute.state.sharded_state import cut_state, gather_states

_ITERATION = "iteration"
_PREFIX = "step-"


def save_checkpoint(execution: Execution, folder: Path, *, iteration: int) -> None:
    """Write everything after `iteration` iterations; a collective call.

    Raises ValueError, on every process the same, while gradients accumulate, or where layers keep what is no tensor:
    that is not part of it.
    """
    accumulate = execution.training.accumulate
    if iteration % accumulate:
        raise ValueError(
            f"a checkpoint after {iteration} iterations is within a step of {accumulate} iterations; save after a "
            f"multiple of {accumulate}"
        )
    require_tensors(execution)
    numbers = [stage.stage_index for stage in execution.stages]
    spoken = [name for n in numbers if execution.model.speaks(n) for name in execution.plan.stages[n].layers]
    layers = [name for n in numbers if execution.model.is_keeper(n) for name in execution.plan.stages[n].layers]
    state = held_state(execution, spoken, whole=gather_states(execution), kept=layers)
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


def require_tensors(execution: Execution) -> None:
    """Raise ValueError, on every process the same, where a layer keeps more than parameters and buffers; a collective
    call.
    """
    mine = [
        f"{path or 'the whole'} of layer {name!r} has state of its own (get_extra_state of {type(module).__name__}), "
        "which no checkpoint holds; let it keep that in buffers"
        for name in held_layers(execution)
        for path, module in execution.layer(name).named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    if faults := [fault for each in gather(mine) for fault in each]:
        raise ValueError(faults[0])


def held_layers(execution: Execution) -> list[str]:
    """The layers that this process holds."""
    return [name for stage in execution.stages for name in execution.plan.stages[stage.stage_index].layers]


def held_state(
    execution: Execution, layers: Sequence[str], *, whole: Mapping[int, Mapping[str, Any]], kept: Collection[str]
) -> dict[str, Any]:
    """Everything about some layers of this process, and the steps taken, by key; a collective call of the groups that
    hold parts. `whole`: the states that are sharded (`gather_states`); `kept`: the layers that are wanted here.
    """
    found = itertools.chain(_whole_weights(execution, layers), _optimizer_state(execution, layers, whole=whole))
    state: dict[str, Any] = {key: value for key, value in found if layer_of(key) in kept}
    told = execution.update.settings()
    state |= {f"settings/{name}": told[name] for name in told if name.partition(":")[0] in kept}
    return state | _update_state(execution)


def _put_in_place(part: Path, folder: Path) -> None:
    """A folder of that name, or its older one, is whole at any time: that goes when the new one is there."""
    old = _older(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _older(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def write_numbered(execution: Execution, folder: Path, *, iteration: int, num_kept: int) -> None:
    """Write `folder/step-00000042`, and take away all but the newest `num_kept`; a collective call."""
    save_checkpoint(execution, folder / f"{_PREFIX}{iteration:08}", iteration=iteration)
    if execution.rank == 0:
        for old in _numbered(folder)[:-num_kept]:
            shutil.rmtree(old, ignore_errors=True)


def find_newest(folder: Path) -> Path | None:
    """The folder itself, if it is a checkpoint, or the newest in it; None if there is none."""
    if whole := [each for each in (folder, _older(folder)) if (each / ".metadata").exists()]:
        return whole[0]  # the older one after a kill between two names
    return next(reversed(_numbered(folder)), None)


def _numbered(folder: Path) -> list[Path]:
    found = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    return [path for path in found if (path / ".metadata").exists()]


def _update_state(execution: Execution) -> dict[str, Any]:
    """Float64 holds every count exactly."""
    return {
        f"update/{name}": torch.tensor(value, dtype=torch.float64) for name, value in execution.update.state().items()
    }


class CountingReader(FileSystemReader):
    """Counts the bytes of tensors and values that it reads."""

    num_bytes = 0

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """As the base does it."""
        self.num_bytes += sum(self.storage_data[item.storage_index].length for item in plan.items)
        return super().read_data(plan, planner)


def load_checkpoint(execution: Execution, folder: Path, *, reader: FileSystemReader | None = None) -> int:
    """Read everything that this process holds; a collective call. Returns how many iterations had been run.

    `reader`: of that folder, to be used instead of a new one. Raises ValueError if a weight is missing or has another
    shape: the checkpoint is that of another model.
    """
    require_tensors(execution)
    reader = reader or FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    held = held_layers(execution)
    places = _weights(execution, held)
    state: dict[str, Any] = {key: _place_for(execution, tensor) for key, tensor in places.items()}
    state[_ITERATION] = torch.tensor(0)
    for key, tensor in state.items():
        found = stored.get(key)
        if not isinstance(found, TensorStorageMetadata) or found.size != tensor.shape:
            has = f"has shape {tuple(found.size)}" if isinstance(found, TensorStorageMetadata) else "is not there"
            raise ValueError(
                f"checkpoint {folder}: {key} {has}, but the model needs {tuple(tensor.shape)}; "
                "give a checkpoint of this model"
            )
    for key, parameter, _ in _kept_optimizer_state(execution, held, keys=stored):
        state[key] = _place_of_state(execution, parameter, found=stored[key])
    more = _update_state(execution) | {f"settings/{name}": {} for name, _ in execution.update.trained}
    more[f"random/{execution.rank}"] = torch.get_rng_state()
    state |= {key: place for key, place in more.items() if key in stored}
    load(state, storage_reader=reader)
    take_over(execution, state)
    execution.number = int(state[_ITERATION])
    return execution.number


def take_over(execution: Execution, state: Mapping[str, Any]) -> None:
    """Continue from the state of the layers that are here, whole, by the keys of a checkpoint."""
    held = held_layers(execution)
    for key, tensor in _weights(execution, held).items():
        part = execution.model.parts.of(tensor)
        if part is not None:
            part.parameter.detach().copy_(part.cut(state[key]))
        elif tensor.data_ptr() != state[key].data_ptr():
            tensor.detach().copy_(state[key])
    for key, parameter, name in _kept_optimizer_state(execution, held, keys=state):
        if (optimizer := execution.update.optimizer_of(parameter)) is not None:
            value = cut_state(execution, parameter, value=state[key])
            if isinstance(value, torch.Tensor):
                is_here = value.device == execution.device or value.shape != parameter.shape
                value = value if is_here else value.to(execution.device)
            optimizer.state[execution.update.stepped_for(parameter)][name] = value
    counts = {key.removeprefix("update/"): float(state[key]) for key in _update_state(execution) if key in state}
    if len(counts) == len(execution.update.state()):
        execution.update.go_on(counts)
    told = {key.removeprefix("settings/"): value for key, value in state.items() if key.startswith("settings/")}
    execution.update.apply_settings(told)
    if (mine := f"random/{execution.rank}") in state:
        torch.set_rng_state(state[mine])


def layer_of(key: str) -> str:
    """The layer whose state a key is of."""
    return key.partition("/")[2].partition(":")[0]


def _place_for(execution: Execution, tensor: torch.Tensor) -> torch.Tensor:
    """What loading fills: the tensor itself, or room on the host for the whole of which a group holds parts."""
    part = execution.model.parts.of(tensor)
    return tensor if part is None else torch.empty(part.shape, dtype=tensor.dtype)


def _whole_weights(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """As `_weights`, put together; a collective call of the groups that hold parts."""
    for key, tensor in _weights(execution, layers).items():
        part = execution.model.parts.of(tensor)
        yield key, tensor if part is None else part.gather(tensor.detach()).cpu()


def _weights(execution: Execution, layers: Sequence[str]) -> dict[str, torch.Tensor]:
    """Parameters and buffers; the tensors themselves, so that loading fills them."""
    found: dict[str, torch.Tensor] = {}
    for name in layers:
        state = dict(execution.model.parts.plain(name, list(kept_tensors(execution.layer(name)).items())))
        found |= {f"weights/{name}:{path}": tensor for path, tensor in state.items()}
        buffers = execution.layer(name).named_buffers()
        found |= {f"buffers/{name}:{path}": tensor for path, tensor in buffers if path not in state}
    return found


def _parameters(execution: Execution, layers: Sequence[str]) -> Iterator[tuple[str, nn.Parameter]]:
    for name in layers:
        for path, parameter in execution.model.held(name):
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
        part = execution.model.parts.of(parameter)
        for name, value in whole.get(id(parameter), held).items():
            if value is not None:
                is_cut = isinstance(value, torch.Tensor) and value.shape == parameter.shape
                is_separate = part is not None and not part.is_over_replicas  # those are in `whole`
                yield prefix + name, part.gather(value).cpu() if part is not None and is_separate and is_cut else value


def _kept_optimizer_state(
    execution: Execution, layers: Sequence[str], *, keys: Collection[str]
) -> Iterator[tuple[str, nn.Parameter, str]]:
    """Of some keys those of the optimizer's state of the parameters here, with parameter and name."""
    for prefix, parameter in _parameters(execution, layers):
        for key in keys:
            if key.startswith(prefix):
                yield key, parameter, key.removeprefix(prefix)


def _place_of_state(execution: Execution, parameter: nn.Parameter, *, found: Any) -> torch.Tensor | None:
    """What loading fills: a new optimizer has no state yet."""
    if not isinstance(found, TensorStorageMetadata):
        return None
    is_whole = id(parameter) not in execution.update.pieces and execution.model.parts.of(parameter) is None
    device = execution.device if is_whole and found.size == parameter.shape else torch.device("cpu")
    return torch.empty(found.size, dtype=found.properties.dtype, device=device)
