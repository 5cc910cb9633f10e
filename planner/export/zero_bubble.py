"""A plan in the form of the zero-bubble fork of Megatron: per rank a list of nodes, as JSON.

What a node holds is what that code's `ScheduledNode` holds: type (F, B the input gradient, W, BW both), stage (the rank
of the pipeline), microbatch, chunk (which of the rank's stages) and layer_group_idx (the stage's number here).
"""

import json
from collections.abc import Sequence
from typing import Any

from planner.actions import Action
from planner.export.samples import require_told
from planner.export.torch_table import require_neighbours, torch_ranks
from planner.plan import Plan
from planner.problem import Problem

TO_THEIRS = {"F": "F", "I": "B", "W": "W", "B": "BW"}
"""Their type of every kind of action."""


def render_zero_bubble(problem: Problem, plan: Plan) -> str:
    """The nodes, a line per rank; raises ValueError for stages that share devices or feed others than the next."""
    require_told(plan, what="zero-bubble's runtime")
    for number, stage in enumerate(plan.stages):
        if len(stage.groups) != 1 or len(stage.groups[0]) != 1:
            raise ValueError(
                f"stage {number} is on several devices, but a node is on one rank; plan with max_replicas = 1"
            )
    require_neighbours(problem, plan, what="the fork")
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
        "type": TO_THEIRS[action.kind],
        "stage": rank,
        "microbatch": action.microbatch,
        "chunk": held.index(action.stage),
        "layer_group_idx": action.stage,
    }
