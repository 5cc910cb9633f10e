"""What a stage holds: bytes of its state, its stash, its gradients (section 1), per device of one of its replicas.

State bytes are not divided over the replicas, but for the optimizer's state where they shard it. What grows with the
batch is that of a whole microbatch here: each replica has its share of it (`memory`).
"""

from fractions import Fraction
from typing import NamedTuple

from planner.judge.recomputation import kept_bytes, kind_in
from planner.judge.samples import round_up
from planner.judge.stage_replicas import is_fully_sharded, is_gathered, is_sharded, is_split
from planner.plan import Stage
from profiles.held_once import HeldOnce
from profiles.model_profile import Layer, ModelProfile, WidthBytes


def is_trained(layer: Layer) -> bool:
    """Whether a layer has a W, and a gradient to synchronise: it has weights, and they are not frozen."""
    return layer.parameter_bytes > 0 and not layer.frozen


def bytes_at(layer: Layer, width: int) -> Layer | WidthBytes | None:
    """What states the layer's bytes per device of a group of `width`; None if nothing does."""
    if width == 1:
        return layer
    return next((entry for entry in layer.wider if entry.width == width), None)


class StageBytes(NamedTuple):
    """Bytes of one stage on every device of one of its replicas; of stashes those of a whole microbatch."""

    state: int
    """Parameters, gradients and optimizer state: resident."""
    stash: int
    """From the start of F to the end of I."""
    weight_stash: int
    """The part of it that stays until the end of W; 0 if there is no W."""
    held: int
    """From the end of F to the start of I or B: the stash, but a checkpoint for each layer that recomputes."""
    rebuilt: int
    """The most that recomputing one of its layers adds to what is held."""
    workspace: int
    """While an action runs."""
    parameters: int
    """The weights."""
    gradients: int
    """Bytes that replicas synchronise."""
    gathered: int
    """The weights that replicas tell each other after a step, where each steps a part of them."""
    part_weights: int
    """Those of them of which a replica holds a part where the stage gathers them, and all while it is active."""
    whole_layers: int
    """What a replica has of layers whose weights and gradients it otherwise holds a part of."""


def stage_bytes(stage: Stage, layers: list[Layer], *, width: int, profile: ModelProfile) -> StageBytes:
    """The bytes of a stage that consists of `layers` of the profile, whose bytes at `width` are known."""
    known = [(layer, entry) for layer in layers if (entry := bytes_at(layer, width)) is not None]
    held = [entry for _, entry in known]
    once, once_kept = _held_once(stage, layers, together=profile.held_once if width == 1 else ())
    twice = sum(pair.stash_bytes for pair in once_kept)
    stash = sum(entry.stash_bytes for entry in held) - twice
    weight_stash = sum(entry.weight_stash_bytes for entry in held) - sum(pair.weight_stash_bytes for pair in once_kept)
    return StageBytes(
        state=sum(entry.state_bytes for entry in held)
        - sum(pair.state_bytes for pair in once)
        - sharded_away(stage, layers, width=width),
        stash=stash,
        weight_stash=min(stash, weight_stash) if any(map(is_trained, layers)) else 0,
        held=sum(kept_bytes(entry, kind_in(stage, layer)) for layer, entry in known) - twice,
        rebuilt=max(entry.stash_bytes - kept_bytes(entry, kind_in(stage, layer)) for layer, entry in known),
        workspace=max(entry.workspace_bytes for entry in held),
        parameters=sum(layer.parameter_bytes for layer in layers),
        gradients=gradient_bytes(layers, width=width),
        gathered=gathered_bytes(layers, width=width),
        part_weights=part_weights(layers),
        whole_layers=whole_layers(layers) if is_fully_sharded(stage) else 0,
    )


def _held_once(
    stage: Stage, layers: list[Layer], *, together: tuple[HeldOnce, ...]
) -> tuple[list[HeldOnce], list[HeldOnce]]:
    """The pairs whose state a stage holds once, and those whose stash: neither of the latter recomputes.

    Replicas that shard, and devices that share the work of a stage, have a weight for each layer.
    """
    kinds = {layer.name: kind_in(stage, layer) for layer in layers}
    here = [pair for pair in together if pair.first in kinds and pair.second in kinds]
    kept = [pair for pair in here if not (kinds[pair.first] or kinds[pair.second])]
    return ([] if is_sharded(stage) or is_split(stage) else here), kept


def sharded_away(stage: Stage, layers: list[Layer], *, width: int) -> int:
    """Bytes of the optimizer's state, and of gathered weights, that a device does not hold: other replicas do."""
    if not is_sharded(stage):
        return 0
    entries = [bytes_at(layer, width) for layer in filter(is_trained, layers)]
    whole = sum(entry.optimizer_bytes or 0 for entry in entries if entry is not None)
    parts = [whole]
    if is_gathered(stage) or is_fully_sharded(stage):
        parts.append(part_weights(layers))
    if is_fully_sharded(stage):
        parts.append(sum(part_gradients(layer) for layer in layers))
    return sum(part - round_up(Fraction(part, len(stage.replicas))) for part in parts)


def part_weights(layers: list[Layer]) -> int:
    """Bytes of trained weights on a single device, as far as the optimizer's state is distinguished from them."""
    return sum(layer.parameter_bytes for layer in layers if is_trained(layer) and layer.optimizer_bytes is not None)


def part_gradients(layer: Layer) -> int:
    """Bytes of a layer's gradients, as far as the optimizer's state is distinguished from them."""
    return gradient_bytes([layer], width=1) if part_weights([layer]) else 0


def whole_layers(layers: list[Layer]) -> int:
    """Weights of a layer and of one that is gathered beside it, and gradients of one and of one that is being sent.

    What is sent stands in memory of its own, as large as the gradients: at the worst both are the largest layer's.
    """
    weights = [part_weights([layer]) for layer in layers]
    beside = [sum(weights[place : place + 2]) for place in range(max(1, len(weights) - 1))]
    return max(beside) + 2 * max(map(part_gradients, layers))


def gathered_bytes(layers: list[Layer], *, width: int) -> int:
    """Bytes of trained weights per device of a group: as stated at that width, otherwise the whole in equal parts."""
    stated, in_equal_parts = 0, 0
    for layer in filter(is_trained, layers):
        known = [entry.parameter_bytes for entry in layer.wider if entry.width == width and width > 1]
        if known and known[0] is not None:
            stated += known[0]
        else:
            in_equal_parts += layer.parameter_bytes
    return stated + round_up(Fraction(in_equal_parts, width))


def gradient_bytes(layers: list[Layer], *, width: int) -> int:
    """Bytes of gradients per device of a group: as stated at that width, otherwise the whole in equal parts.

    Gradients that are not stated are as large as the weights.
    """
    stated, in_equal_parts = 0, 0
    for layer in filter(is_trained, layers):
        whole = layer.parameter_bytes if layer.gradient_bytes is None else layer.gradient_bytes
        known = [entry.gradient_bytes for entry in layer.wider if entry.width == width and width > 1]
        if known and known[0] is None and layer.gradient_bytes is None:
            known = [entry.parameter_bytes for entry in layer.wider if entry.width == width]
        if known and known[0] is not None:
            stated += known[0]
        else:
            in_equal_parts += whole
    return stated + round_up(Fraction(in_equal_parts, width))
