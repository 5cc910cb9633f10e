"""A plan in the form of the zero-bubble fork of Megatron: per rank a list of nodes, as JSON, and back.

What a node holds is what that code's `ScheduledNode` holds: type (F, B the input gradient, W, BW both), stage (the rank
of the pipeline), microbatch, chunk (which of the rank's stages) and layer_group_idx (the stage's number here).
"""

import json
from collections.abc import Sequence
from typing import Any

from planner.actions import Action
from planner.export.samples import require_told
from planner.export.torch_table import torch_ranks
from planner.plan import Plan, Schedule

_TO_THEIRS = {"F": "F", "I": "B", "W": "W", "B": "BW"}
_TO_OURS = {theirs: ours for ours, theirs in _TO_THEIRS.items()}


def render_zero_bubble(plan: Plan) -> str:
    """The nodes, a line per rank; raises ValueError for a stage that is not on a single device."""
    require_told(plan, what="zero-bubble's runtime")
    for number, stage in enumerate(plan.stages):
        if len(stage.groups) != 1 or len(stage.groups[0]) != 1:
            raise ValueError(
                f"stage {number} is on several devices, but a node is on one rank; plan with max_replicas = 1"
            )
    held: dict[str, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        held.setdefault(stage.replicas[0][0], []).append(number)
    rows = [
        [_node(action, rank=rank, held=held[device]) for action in plan.schedule[device]]
        for rank, device in enumerate(torch_ranks(plan))
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def _node(action: Action, *, rank: int, held: Sequence[int]) -> dict[str, Any]:
    return {
        "type": _TO_THEIRS[action.kind],
        "stage": rank,
        "microbatch": action.microbatch,
        "chunk": held.index(action.stage),
        "layer_group_idx": action.stage,
    }


def import_zero_bubble(text: str, devices: Sequence[str]) -> Schedule:
    """The schedule, on the device of every rank; raises ValueError for what is none."""
    try:
        rows = json.loads(text)
        schedule = {
            device: tuple(Action(_TO_OURS[n["type"]], n["layer_group_idx"], n["microbatch"]) for n in row)  # type: ignore[arg-type]
            for device, row in zip(devices, rows, strict=True)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no schedule for {len(devices)} ranks in the zero-bubble format: {error}") from None
    return schedule
