"""Copies of a job's state in its hosts' memory: where a replica of every layer is alive, nothing is read from disk.

Every process keeps the state after its two newest iterations as files in memory (`/dev/shm`), which survive it. Nobody
writes a copy before all have written the one before it, so all that are left have the older of the two in common. A
job that is started anew asks all its processes what their hosts have, and takes every layer from one iteration; those
copies stay until all its processes have their own.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import distributed

from planner.document import plan_sha256
from planner.execute.parallel.process_groups import gather
from planner.execute.record.recipe import CopiesOrder
from planner.execute.run.execution import Execution
from planner.execute.state.checkpoint import held_layers, held_state, layer_of, require_tensors, take_over
from planner.execute.state.sharded_state import gather_states

_PART = "part"

_Found = dict[str, dict[int, dict[str, str]]]
"""By plan, iteration and layer where a host has a copy."""


def keep_copy(execution: Execution, folder: Path, *, iteration: int) -> None:
    """Keep the state after `iteration` iterations, and the copy before it; a collective call.

    Every process keeps its layers whole: what several devices hold in pieces (sharded states, groups) is put together.
    Copies of an earlier plan go when all processes have one of this plan. Raises ValueError if the folder is another's.
    """
    if iteration % execution.training.accumulate:
        return  # gradients that accumulate are no part of it
    require_tensors(execution)
    execution.log.note("the copy of the state")
    random = gather(torch.get_rng_state())  # nobody gets beyond before all have written their copies of before
    plan = _own(folder) / plan_sha256(execution.plan)
    place = plan / quote(execution.layout.devices[execution.rank], safe="")
    place.mkdir(parents=True, exist_ok=True)
    kept = _numbered(place)
    for old in kept[:-1]:
        old.unlink()
    for earlier in folder.iterdir() if kept else ():
        if earlier != plan:
            shutil.rmtree(earlier, ignore_errors=True)
    layers = held_layers(execution)
    copy = {
        "iteration": iteration,
        "layers": layers,
        "random": random,
        "state": held_state(execution, layers, whole=gather_states(execution, by_all=True), kept=layers),
    }
    execution.log.note("")
    torch.save(copy, place / _PART)
    (place / _PART).rename(place / f"{iteration:08}")


def restore_copies(execution: Execution, folder: Path, *, order: CopiesOrder, since: int) -> int | None:
    """Take the newest iteration, `since` or later, of which the copies of devices that are not lost have every layer.

    Those of the plan that ended, or, where it had not got as far as to have them, of one before it. A collective call.
    Returns how many iterations had been run, or None, on every process the same, if there is none.
    """
    told = gather(_find(folder, order=order))
    layers = [name for stage in execution.plan.stages for name in stage.layers]
    chosen = _choose(told, plan=order.plan_sha256, layers=layers, since=since)
    if chosen is None:
        return None
    iteration, places = chosen
    read = cache(_read)
    state: dict[str, Any] = {}
    first = {name: min(ranks) for name, ranks in places.items()}
    speaker = min(first.values())
    for name, rank in _wanted(execution):
        if rank in places[name]:
            if rank == execution.rank:
                state |= _state_of(read(places[name][rank]), name)
        elif execution.rank == first[name]:
            distributed.send_object_list([_state_of(read(places[name][execution.rank]), name)], rank)
        elif execution.rank == rank:
            box: list[Any] = [None]
            distributed.recv_object_list(box, first[name])
            state |= box[0]
    common: list[Any] = [None]
    if execution.rank == speaker:
        copy = read(next(ranks[speaker] for ranks in places.values() if speaker in ranks))
        update = {key: value for key, value in copy["state"].items() if key.startswith("update/")}
        common = [update | {f"random/{rank}": each for rank, each in enumerate(copy["random"])}]
    distributed.broadcast_object_list(common, speaker)
    take_over(execution, state | common[0])
    execution.number = iteration
    distributed.barrier()  # nobody takes copies away that another one still reads
    return iteration


def clear_copies(folder: Path) -> None:
    """Take away what this host has."""
    shutil.rmtree(folder, ignore_errors=True)


def _own(folder: Path) -> Path:
    """The folder, made if it is not there; what others may write is not read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(f"{folder} belongs to another user; name a folder of your own")
    return folder


def _numbered(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.name != _PART)


def _find(folder: Path, *, order: CopiesOrder) -> _Found:
    """The live copies on this host."""
    found: _Found = {}
    if folder.is_dir():
        for place in sorted(_own(folder).glob("*/*/")):
            for path in _numbered(place) if unquote(place.name) not in order.lost else ():
                copy = _read(path)
                iterations = found.setdefault(place.parent.name, {})
                iterations.setdefault(copy["iteration"], {}).update({name: str(path) for name in copy["layers"]})
    return found


def _choose(
    told: list[_Found], *, plan: str, layers: Collection[str], since: int
) -> tuple[int, dict[str, dict[int, Path]]] | None:
    """The iteration that all layers are taken from, and by layer the ranks on whose hosts it is, and where.

    `plan`: whose copies go before those of others.
    """
    known = {(each, number) for found in told for each in found for number in found[each] if number >= since}
    for each, number in sorted(known, key=lambda one: (one[0] == plan, one[1]), reverse=True):
        places: dict[str, dict[int, Path]] = {name: {} for name in layers}
        for rank, found in enumerate(told):
            for name, path in found.get(each, {}).get(number, {}).items():
                places[name][rank] = Path(path)
        if all(places.values()):
            return number, places
    return None


def _read(path: Path) -> dict[str, Any]:
    """A copy, whose tensors are only read where they are used."""
    copy: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    return copy


def _state_of(copy: Mapping[str, Any], layer: str) -> dict[str, Any]:
    """Of one layer, apart from the file: another copy takes its place."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in copy["state"].items()
        if layer_of(key) == layer
    }


def _wanted(execution: Execution) -> Iterator[tuple[str, int]]:
    """Layers and the ranks that hold them, in an order that all processes keep to."""
    ranks = {device: rank for rank, device in enumerate(execution.layout.devices)}
    for stage in execution.plan.stages:
        for name in stage.layers:
            for rank in sorted({ranks[device] for group in stage.replicas for device in group}):
                yield name, rank
