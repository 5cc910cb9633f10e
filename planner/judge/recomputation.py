"""Which layers recompute, and by which kind (section 1): what that takes, and what it leaves of a stash.

Every layer has the full kind, which keeps its inputs only; what others leave and take, the layer and its costs state.
A stage that lists microbatches recomputes those alone, and keeps everything of the others (`microbatches`).
"""

from planner.plan import Stage
from profiles.model_profile import Layer, LayerCost, WidthBytes

NONE, FULL = "", "full"
"""No recomputation, and the kind that every layer has."""


def recompute_kinds(layer: Layer) -> list[str]:
    """The kinds that a layer states."""
    return [FULL, *(entry.kind for entry in layer.recompute_kinds)]


def kind_in(stage: Stage, layer: Layer) -> str:
    """By which kind a layer recomputes in a stage."""
    if isinstance(stage.recompute, bool):
        return FULL if stage.recompute else NONE
    return next((kind for name, kind in stage.recompute if name == layer.name), NONE)


def extra_ns(cost: LayerCost, kind: str) -> int:
    """What I or B takes longer."""
    if kind in (NONE, FULL):
        return cost.recompute_ns if kind == FULL else 0
    return next(entry.recompute_ns for entry in cost.recompute_kinds if entry.kind == kind)


def kept_bytes(entry: Layer | WidthBytes, kind: str) -> int:
    """What stays of the stash from F to I or B."""
    if kind in (NONE, FULL):
        return entry.checkpoint_bytes if kind == FULL else entry.stash_bytes
    return next(each.checkpoint_bytes for each in entry.recompute_kinds if each.kind == kind)
