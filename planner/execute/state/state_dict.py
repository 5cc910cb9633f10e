"""Weights under the names of the model's own state dictionary: each process reads and writes those of its layers.

Files are those of transformers (`weight_files.py` reads them). Without safetensors they are written by torch (`.bin`).
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.named_tensors import has_names_of_its_own, kept_tensors, standing_in, take_names_back
from planner.execute.model.weight_files import WeightFiles
from planner.execute.parallel.group_parts import GroupPart
from planner.execute.parallel.process_groups import gather
from planner.execute.record.put_whole import put_whole
from planner.execute.run.execution import Execution
from planner.execute.training import Training

_STEM, _OTHER_STEM = "model", "weights"
"""How names of files begin, in turns."""

_OWN_FILE = re.compile(rf"({_STEM}|{_OTHER_STEM})-\d{{5}}-of-\d{{5}}\.(safetensors|bin)")

_HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None


def name_of(layer: nn.Module, name: str, *, path: str) -> str:
    """What a tensor of a layer is called in the model's state dictionary: in a layer out of a model as it was there,
    elsewhere behind the layer's name.
    """
    return path if isinstance(layer, CutLayer) else f"{name}.{path}"


def save_weights(execution: Execution, folder: Path) -> None:
    """Write a file per process and the index; a collective call. Of several replicas the first writes.

    A model of transformers is written as its `save_pretrained` would, its configuration beside it. Weights that stood
    there stay whole until the index names the new files, which have other names than those.
    """
    mine, conversion = _held(execution), execution.training.conversion
    if conversion is not None:
        mine = conversion.revert(mine)
    index_at = folder / f"{_STEM}{_ending()}.index.json"
    execution.log.note("the writing of weights")
    stem: str = gather(_choose_stem(index_at))[0]
    file = f"{stem}-{execution.rank + 1:05}-of-{execution.layout.world_size:05}{_ending()}"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / file, {key: tensor.detach().cpu().contiguous().clone() for key, tensor in mine.items()})
    sizes = {key: tensor.numel() * tensor.element_size() for key, tensor in mine.items()}
    everyone = gather((file, sizes))
    if execution.rank == 0:
        found_in = {key: name for name, keys in everyone for key in keys}
        total = sum(sum(keys.values()) for _, keys in everyone)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(found_in.items()))}
        put_whole(index_at, json.dumps(index, indent=2) + "\n")
        if conversion is not None:
            conversion.save_config(folder)
    distributed.barrier()
    for old in folder.iterdir():
        if _OWN_FILE.fullmatch(old.name) and old.name not in {name for name, _ in everyone}:
            old.unlink(missing_ok=True)
    execution.log.note("")


def _choose_stem(index: Path) -> str:
    """How the new files' names begin: not as those that the index names."""
    is_taken = index.exists() and f'"{_STEM}-' in index.read_text(encoding="utf-8")
    return _OTHER_STEM if is_taken else _STEM


def require_savable(execution: Execution, folder: Path) -> None:
    """Raise ValueError, on every process the same, where a tensor of the files takes weights of several processes, or
    the folder has weights that would be read in place of them; a collective call.
    """
    first = sorted(folder.glob(f"{_STEM if _HAS_SAFETENSORS else '*'}.safetensors"))
    if found := [path for paths in gather(first) for path in paths]:
        raise ValueError(
            f"--save-weights: {found[0]} would be read in place of the new weights; name another folder, or remove it"
        )
    layers = [execution.layer(name) for _, name in _layers(execution)]
    kept = [pair for layer in layers for pair in layer.state_dict(keep_vars=True).items()]
    strange = next((f"{path!r} is {kind}" for path, each in kept if (kind := _unsavable_kind(each))), "")
    if found := [each for each in gather(strange) if each]:
        raise ValueError(
            f"--save-weights: {found[0]}, which files of weights cannot hold; keep it in a buffer of a type that they "
            "hold, or, of a tensor, write a checkpoint (--save)"
        )
    conversion = execution.training.conversion
    torn = "" if conversion is None else conversion.find_torn(_held_names(execution))
    if found := [name for name in gather(torn) if name]:
        raise ValueError(
            f"--save-weights: {found[0]} of transformers' files combines weights of several processes; plan with these "
            "in one stage, or write a checkpoint (--checkpoint)"
        )


def _unsavable_kind(value: Any) -> str:
    """What a value of a state dictionary is, if files of weights cannot hold it; or nothing."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} (get_extra_state)"
    if _HAS_SAFETENSORS:
        from safetensors.torch import _SIZE

        return "" if value.dtype in _SIZE else str(value.dtype)[6:]
    return ""


def _held_names(execution: Execution) -> list[str]:
    """The model's own names of the weights here."""
    return [
        name_of(layer, name, path=path)
        for _, name in _layers(execution)
        for layer in [execution.layer(name)]
        for path in layer.state_dict(keep_vars=True)
    ]


def _held(execution: Execution) -> dict[str, torch.Tensor]:
    """What this process speaks for, whole, by the model's own names; a collective call of groups."""
    mine: dict[str, torch.Tensor] = {}
    aliases: dict[str, list[str]] = {}
    for alias, home in execution.training.aliases.items():
        aliases.setdefault(home, []).append(alias)
    for stage, name in _layers(execution):
        if not execution.model.speaks(stage):
            continue
        layer, parts = execution.layer(name), execution.model.parts.of_layer.get(name, {})
        wholes = {path: part.gather(part.parameter.detach()) for path, part in parts.items()}
        with standing_in(layer, wholes):
            state = layer.state_dict()
        for path, tensor in state.items() if execution.model.is_keeper(stage) else ():
            for key in (name_of(layer, name, path=path), *aliases.get(f"{name}:{path}", ())):
                mine[key] = tensor
    return mine


@torch.no_grad()
def share_weights(execution: Execution, model: nn.Module) -> None:
    """Give every process all weights, in a model made whole there; a collective call."""
    mine, state = _held(execution), model.state_dict(keep_vars=True)
    shared: set[int] = set()
    execution.log.note("the sharing of weights")
    for rank, names in enumerate(gather(list(mine))):
        for name in names:
            if name not in state or state[name].data_ptr() in shared:
                continue
            value = (mine if name in mine and rank == execution.rank else state)[name].detach()
            value = value.to(execution.device).contiguous()
            distributed.broadcast(value, src=rank)
            state[name].copy_(value)
            shared.add(state[name].data_ptr())
    if has_names_of_its_own(model, state):
        model.load_state_dict(state)
    execution.log.note("")


def _layers(execution: Execution) -> list[tuple[int, str]]:
    """(stage, layer) of this process."""
    numbers = [stage.stage_index for stage in execution.stages]
    return [(number, name) for number in numbers for name in execution.plan.stages[number].layers]


def _ending() -> str:
    return ".safetensors" if _HAS_SAFETENSORS else ".bin"


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if _HAS_SAFETENSORS:
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
    with WeightFiles(path, execution.training.conversion) as files:
        for _, name in _layers(execution):
            _load_layer(execution, name, files=files, others=others)


def _load_layer(execution: Execution, name: str, *, files: WeightFiles, others: Mapping[str, tuple[str, ...]]) -> None:
    layer, parts = execution.layer(name), execution.model.parts.of_layer.get(name, {})
    unused = set(getattr(layer, "kept_only", ()))

    def read(path: str, tensor: torch.Tensor) -> torch.Tensor:
        keys = (name_of(layer, name, path=path), *others.get(f"{name}:{path}", ()))
        default = tensor.detach() if path in unused else None
        return files.read(keys, shape=tensor.shape, layer=name, default=default)

    with standing_in(layer, {path: torch.empty(part.shape, device="meta") for path, part in parts.items()}):
        state = layer.state_dict(keep_vars=True)
        is_renamed = has_names_of_its_own(layer, state)
    if is_renamed:
        values = take_names_back(layer, {path: read(path, tensor) for path, tensor in state.items()})
        for path, tensor in kept_tensors(layer).items():
            _fill(tensor, values[path], part=parts.get(path))
        return
    for path, tensor in state.items():
        _fill(tensor, read(path, tensor), part=parts.get(path))


def _fill(tensor: torch.Tensor, value: torch.Tensor, *, part: GroupPart | None) -> None:
    if part is None:
        tensor.copy_(value)
    else:
        part.parameter.copy_(part.cut(value))


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
