"""The options under which all is decided that a profile states costs for."""

from typing import Any

from planner.export.targets import MOST_CHUNKS
from profiles.model_profile import Layer, LayerCost, ModelProfile, WidthBytes


def open_decisions(profile: ModelProfile) -> dict[str, Any]:
    """Options by name: widths, chunks, recomputation and sharded state as far as the profile says what they take.

    Replicas, cuts, devices and orders are open without them. Unequal shares and split placement are left out, since
    few programs run them and few bounds cover them.
    """
    opened: dict[str, Any] = {"max_stages_per_device": MOST_CHUNKS}
    widest = max(cost.width for layer in profile.layers for cost in layer.costs)
    if widest > 1:
        opened["max_width"] = widest
    if _states_recomputation(profile):
        parts = ("recompute", "recompute_layers", "recompute_microbatches", "recompute_in_turn")
        opened |= dict.fromkeys(parts, True)
    if any(layer.shardable_bytes_at(width) for layer in profile.layers for width in _widths(layer)):
        opened["shard_optimizer"] = "allow"
    return opened


def _states_recomputation(profile: ModelProfile) -> bool:
    """Whether some layer keeps less where it recomputes, and each that does says what it takes, at all widths."""
    saving = [layer for layer in profile.layers if _saves(layer) or any(map(_saves, layer.wider))]
    return bool(saving) and all(_states_time(cost) for layer in saving for cost in layer.costs)


def _saves(held: Layer | WidthBytes) -> bool:
    return held.checkpoint_bytes < held.stash_bytes


def _states_time(cost: LayerCost) -> bool:
    return cost.recompute_ns > 0 or cost.forward_ns == 0


def _widths(layer: Layer) -> set[int]:
    return {cost.width for cost in layer.costs}
