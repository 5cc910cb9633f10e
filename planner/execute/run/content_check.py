"""All processes compare what should be the same: the batch they were given, and what replicas of a stage hold."""

from collections.abc import Mapping
from typing import Any

from planner.errors import ExecutionError
from planner.execute.data.data_agreement import (
    digest_batch,
    digest_stage,
    find_assignment_difference,
    find_batch_difference,
    find_drift,
    find_team_drift,
    find_uneven_targets,
)
from planner.execute.parallel.process_groups import gather
from planner.execute.run.local_model import LocalModel
from planner.execute.table.layout import Layout
from planner.execute.training import Batch, Training, as_tuple


def require_fit_batch(given: Batch | None, training: Training, *, layout: Layout, number: int) -> None:
    """Raise ExecutionError, on every process the same, if those that take the batch of an iteration differ in it, or
    replicas would take means over different numbers of targets.
    """
    uneven = ""
    if given is not None:
        sizes: dict[str, Any] = {"num_microbatches": layout.num_microbatches, "samples": layout.samples_of(-1)}
        uneven = "" if training.loss_is_sum else find_uneven_targets(given[1], number=number, **sizes)
    told = gather((_digest({} if given is None else {None: given}), uneven))
    text = find_batch_difference([each for each, _ in told], devices=layout.devices, number=number)
    text = text or next((each for _, each in told if each), "")
    if text:
        raise ExecutionError(text)


def require_fit_microbatches(mine: Mapping[int, Batch], *, layout: Layout, number: int) -> None:
    """Raise ExecutionError, on every process the same, if processes were given different microbatches of an iteration
    or deal them in different ways. `mine`: those given here; `layout`: with the dealing.
    """
    told = gather((_digest(mine), layout.dealing))
    text = find_batch_difference([each for each, _ in told], devices=layout.devices, number=number)
    text = text or find_assignment_difference([each for _, each in told], devices=layout.devices, number=number)
    if text:
        raise ExecutionError(text)


def _digest(given: Mapping[Any, Batch]) -> dict[Any, tuple[str, str]]:
    return {
        place: (digest_batch(as_tuple(inputs)), digest_batch([target])) for place, (inputs, target) in given.items()
    }


def require_same_replicas(model: LocalModel, *, number: int) -> None:
    """Raise ExecutionError, on every process the same, if replicas of a stage differ after an iteration."""
    layout = model.layout
    if max(map(len, layout.owners)) == 1:
        return
    model.share_averages()
    mine, whole = dict[str, int](), dict[str, int]()
    for stage in model.stages:
        if len(layout.owners[stage.stage_index]) > 1:
            layers = model.plan.stages[stage.stage_index].layers
            tensors = [
                (f"{name}:{path}", tensor)
                for name in layers
                for path, tensor in (*model.held(name), *model.layer(name).named_buffers())
                if not model.parts.is_over_replicas(tensor)
            ]
            mine |= digest_stage(stage.stage_index, tensors)
            uncut = [(name, tensor) for name, tensor in tensors if not model.parts.is_cut(tensor)]
            whole |= digest_stage(stage.stage_index, uncut)
    told = gather((mine, whole))
    alike = [(stage, ranks) for stage in range(layout.num_stages) for ranks in layout.alike(stage)]
    teams = [(stage, ranks) for stage in range(layout.num_stages) for ranks in layout.groups_of(stage)]
    text = find_drift([sums for sums, _ in told], alike=alike, devices=layout.devices, number=number)
    text = text or find_team_drift([sums for _, sums in told], teams=teams, devices=layout.devices, number=number)
    if text:
        raise ExecutionError(text)
