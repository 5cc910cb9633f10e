"""Layers of a plan as the parts of a language model that Megatron and torchtitan know, and back."""

import re
from collections.abc import Sequence

from planner.plan import Plan
from planner.problem import Problem

_LETTERS = (
    ("E", re.compile(r"embed|(^|[^a-z])(wte|wpe)([^a-z]|$)", re.IGNORECASE)),
    ("m", re.compile(r"(^|[^a-z])mtp", re.IGNORECASE)),
    ("L", re.compile(r"head|loss|logit|pooler|(final|last|^).?(layer)?norm|^output|(^|[.])ln_f", re.IGNORECASE)),
)
"""E: embedding, m: multi-token prediction, L: what comes after the last block; everything else is a block."""


def letter_of(layer: str) -> str:
    """What a layer is, by its name: E, t (a transformer block), m or L."""
    return next((letter for letter, pattern in _LETTERS if pattern.search(layer)), "t")


def is_block(layer: str) -> bool:
    """Whether a layer is a transformer block, by its name."""
    return letter_of(layer) in "tm"


_BLOCK = re.compile(r"block|layer|decod|encod|transformer|(^|[^a-z])[hl]([^a-z]|$)", re.IGNORECASE)
"""Names of blocks in models that are lists of them."""
_NUMBERED = re.compile(r"[0-9]+|[^a-z0-9]*(dense|moe|experts?)(?![a-z])", re.IGNORECASE)
"""What tells blocks of one model apart."""


Cut = Sequence[Sequence[str]]
"""The layers of every stage."""


def letters_of(problem: Problem, cut: Cut) -> list[str]:
    """Per stage the letters of its layers, with the E and the L that a profile of blocks alone leaves out.

    Raises ValueError if the layers are no chain from an embedding over blocks to a head, cut between layers.
    """
    require_contiguous(problem, cut)
    stages = ["".join(map(letter_of, layers)) for layers in cut]
    whole = "".join(stages)
    if "E" not in whole:
        stages[0] = "E" + stages[0]
    if "L" not in whole:
        stages[-1] += "L"
    if re.fullmatch(r"E+t+m*L+", "".join(stages)) is None:
        raise ValueError(
            f"the layers are {''.join(stages)!r} by their names, not an embedding (E), blocks (t) and a head (L); "
            "rename the profile's layers, e.g. embedding, layers.0, ..., norm, head"
        )
    return stages


def require_blocks(layers: Sequence[str], *, what: str) -> None:
    """Raise ValueError where the layers are not the blocks of a transformer, which have one name but for numbers."""
    kinds = {_NUMBERED.sub("", name): name for name in reversed(layers) if letter_of(name) == "t"}
    is_told = any(letter_of(name) in "EL" for name in layers) or any(map(_BLOCK.search, kinds))
    if len(kinds) == 1 and is_told:
        return
    shown = " and ".join(map(repr, sorted(kinds.values(), key=layers.index)[:2]))
    raise ValueError(
        f"layers such as {shown} are not alike blocks of a transformer by their names, and {what} builds no other "
        "model; plan for another program (pipeplan targets), or, if they are, rename them, e.g. layers.0, layers.1"
    )


def cut_by(plan: Plan) -> Cut:
    """The layers of every stage of a plan."""
    return [stage.layers for stage in plan.stages]


def require_contiguous(problem: Problem, cut: Cut) -> None:
    """Raise ValueError unless the stages cut the profile's list of layers."""
    names = [layer.name for layer in problem.profile.layers]
    listed = [name for stage in cut for name in stage]
    if listed != names:
        at = next(number for number, name in enumerate(names) if listed[number] != name)
        raise ValueError(
            f"the stages take layer {listed[at]!r} where the model has {names[at]!r}: they do not divide one list of "
            "layers; plan for a chain"
        )
