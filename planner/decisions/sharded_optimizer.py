"""Replicas of a stage that hold a part each of the optimizer's state (ZeRO-1)."""

from operator import attrgetter
from typing import Any, get_args

from planner.decisions.decision import Decision, Switch
from planner.option_values import ShardChoice


def _can_shard(profile: Any) -> str:
    sizes = (
        layer.shardable_bytes_at(width) for layer in profile.layers for width in {cost.width for cost in layer.costs}
    )
    return "allow" if any(sizes) else "never"


DECISION = Decision(
    bounds=None,
    matters=attrgetter("may_shard"),
    is_enumerated=True,
    opened=_can_shard,
    switch=Switch(
        help="Replicas shard the optimizer's state (ZeRO-1): never; together (all or none); allow (any stage); always.",
        metavar="WHERE",
        values=get_args(ShardChoice),
        says={
            "allow": "replicas may divide the optimizer's state",
            "together": "all replicas divide the optimizer's state, or none",
            "always": "replicas divide the optimizer's state",
        },
    ),
)
