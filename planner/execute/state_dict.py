"""Weights under the names of the model's own state dictionary: each process reads and writes those of its layers.

Files are those of transformers (`weight_files.py` reads them). Without safetensors they are written by torch (`.bin`).
"""

import importlib.util
import json
from pathlib import Path

import torch
from torch import distributed, nn

from planner.execute.cut.cut_layer import CutLayer
from planner.execute.execution import Execution
from planner.execute.process_groups import gather
from planner.execute.training import Training
from planner.execute.weight_files import WeightFiles

STEM = "model"

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None


def name_of(layer: nn.Module, name: str, *, path: str) -> str:
    """What a tensor of a layer is called in the model's state dictionary: in a layer out of a model as it was there,
    elsewhere behind the layer's name.
    """
    return path if isinstance(layer, CutLayer) else f"{name}.{path}"


def save_weights(execution: Execution, folder: Path) -> None:
    """Write a file per process and the index; a collective call. Of several replicas the first writes."""
    mine = _held(execution)
    file = f"{STEM}-{execution.rank + 1:05}-of-{execution.layout.world_size:05}{_ending()}"
    execution.log.note("the writing of weights")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / file, {key: tensor.detach().cpu().contiguous().clone() for key, tensor in mine.items()})
    sizes = {key: tensor.numel() * tensor.element_size() for key, tensor in mine.items()}
    everyone = gather((file, sizes))
    if execution.rank == 0:
        found_in = {key: name for name, keys in everyone for key in keys}
        total = sum(sum(keys.values()) for _, keys in everyone)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(found_in.items()))}
        (folder / f"{STEM}{_ending()}.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    distributed.barrier()
    execution.log.note("")


def _held(execution: Execution) -> dict[str, torch.Tensor]:
    """What this process speaks for, whole, by the model's own names; a collective call of groups."""
    mine: dict[str, torch.Tensor] = {}
    aliases: dict[str, list[str]] = {}
    for alias, home in execution.training.aliases.items():
        aliases.setdefault(home, []).append(alias)
    for stage, name in _layers(execution):
        layer = execution.layer(name)
        state = list(layer.state_dict().items()) if execution.speaks(stage) else []
        for path, tensor in execution.parts.plain(name, state):
            part = execution.parts.of(tensor)
            tensor = tensor if part is None else part.gather(tensor.detach())
            if not execution.is_keeper(stage):
                continue
            for key in (name_of(layer, name, path=path), *aliases.get(f"{name}:{path}", ())):
                mine[key] = tensor
    return mine


@torch.no_grad()
def share_weights(execution: Execution, model: nn.Module) -> None:
    """Give every process all weights, in a model made whole there; a collective call."""
    mine, state = _held(execution), model.state_dict()
    shared: set[int] = set()
    execution.log.note("the sharing of weights")
    for rank, names in enumerate(gather(list(mine))):
        for name in names:
            if name not in state or state[name].data_ptr() in shared:
                continue
            value = mine[name].detach() if name in mine and rank == execution.rank else state[name]
            value = value.to(execution.device).contiguous()
            distributed.broadcast(value, src=rank)
            state[name].copy_(value)
            shared.add(state[name].data_ptr())
    execution.log.note("")


def _layers(execution: Execution) -> list[tuple[int, str]]:
    """Those here, with their stages."""
    numbers = [stage.stage_index for stage in execution.stages]
    return [(number, name) for number in numbers for name in execution.plan.stages[number].layers]


def _ending() -> str:
    return ".safetensors" if HAS_SAFETENSORS else ".bin"


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if HAS_SAFETENSORS:
        from safetensors.torch import save_file

        save_file(tensors, str(path), metadata={"format": "pt"})
    else:
        torch.save(tensors, path)


@torch.no_grad()
def load_weights(execution: Execution, path: Path) -> None:
    """Fill the weights of this process from files under the model's own names; every process calls it.

    A name that is not there may stand under that of a weight which is tied to it. Raises ValueError where one is
    missing or has another shape.
    """
    others = _other_names(execution)
    with WeightFiles(path) as files:
        for _, name in _layers(execution):
            layer = execution.layer(name)
            for place, tensor in execution.parts.plain(name, list(layer.state_dict().items())):
                keys = (name_of(layer, name, path=place), *others.get(f"{name}:{place}", ()))
                value = files.read(keys, shape=execution.parts.shape(tensor), layer=name)
                part = execution.parts.of(tensor)
                tensor.copy_(value if part is None else part.cut(value))


def _other_names(execution: Execution) -> dict[str, tuple[str, ...]]:
    """Per `layer:path` the names of what is the same weight."""
    training = execution.training
    aliases: dict[str, list[str]] = {}
    for alias, home in training.aliases.items():
        aliases.setdefault(home, []).append(alias)
    found: dict[str, tuple[str, ...]] = {home: tuple(names) for home, names in aliases.items()}
    for group in training.tied:
        names = [name for member in group for name in (_tied_name(training, member), *aliases.get(member, ()))]
        found |= dict.fromkeys(group, tuple(names))
    return found


def _tied_name(training: Training, member: str) -> str:
    name, _, path = member.partition(":")
    with torch.device("meta"):
        return name_of(training.layers[name](), name, path=path)
