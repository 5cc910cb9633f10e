"""A plan's stages as Megatron-LM's pattern of a hybrid model (core 0.19.2): a letter per layer, | between stages.

Attention, feed-forward part, experts and recurrent mixers are layers of their own there. Which one a layer is says its
name: `layers.3.mamba`, `gdn.5`, `attention.7`, `mlp.8`, `moe.9`.
"""

import re
from collections.abc import Iterable, Sequence

from planner.export.model_parts import Cut, is_block, letter_of

_SUBLAYERS = (
    ("M", re.compile(r"mamba|(^|[^a-z])ssm([^a-z]|$)", re.IGNORECASE)),
    ("G", re.compile(r"gated.?delta|(^|[^a-z])gdn([^a-z]|$)|delta.?net|linear.?att", re.IGNORECASE)),
    ("*", re.compile(r"att(entio)?n", re.IGNORECASE)),
    ("E", re.compile(r"(^|[^a-z])moe([^a-z]|$)|expert|mixture", re.IGNORECASE)),
    ("-", re.compile(r"(^|[^a-z])(mlp|ffn)([^a-z]|$)|feed.?forward", re.IGNORECASE)),
)
"""M: Mamba, G: gated delta net, *: attention, E: experts, -: one feed-forward part."""


def sublayer_of(layer: str) -> str:
    """What a layer is, by its name; empty where that does not say."""
    return next((letter for letter, pattern in _SUBLAYERS if pattern.search(layer)), "")


def is_hybrid(layers: Iterable[str]) -> bool:
    """Whether some layers are recurrent mixers, by their names."""
    return any(sublayer_of(name) in ("M", "G") for name in layers if is_block(name))


def require_whole_blocks(layers: Iterable[str]) -> None:
    """Raise ValueError where layers are parts of blocks, which a layout's `t` does not stand for."""
    parts = {sublayer_of(name): name for name in layers if is_block(name)}
    if "*" in parts and (feed := parts.get("-") or parts.get("E")):
        raise ValueError(
            f"layers {parts['*']!r} and {feed!r} are parts of a block by their names, and Megatron's layout counts "
            "whole blocks; profile blocks as layers"
        )


def pattern_of(cut: Cut) -> str:
    """The value of `--hybrid-layer-pattern`; embedding and head have no letter there.

    Raises ValueError with the layer for what no pattern says.
    """
    return "|".join(_stage(layers) for layers in cut)


def _stage(layers: Sequence[str]) -> str:
    letters = []
    for name in layers:
        letter = letter_of(name)
        if letter == "m":
            raise ValueError(
                f"layer {name!r}: multi-token prediction stands behind / in a hybrid model's pattern, in no stage of "
                "its own; plan without it"
            )
        if letter != "t":
            continue
        if not (sublayer := sublayer_of(name)):
            raise ValueError(
                f"layer {name!r}: its name does not say what it is, and other layers are recurrent mixers; name "
                "layers so, e.g. layers.0.mamba, layers.1.mlp, layers.2.attention, layers.3.moe, layers.4.gdn"
            )
        letters.append(sublayer)
    return "".join(letters)
