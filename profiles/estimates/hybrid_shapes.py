"""Shapes of hybrid models, whose blocks are parts of their own: attention, feed-forward part, experts, mixers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.documents.refusal import render_value
from profiles.documents.unique_names import read_json
from profiles.estimates.model_shapes import (
    SUBLAYERS,
    ConfigReader,
    ModelShape,
    RecurrentShape,
    read_mixture,
    read_shape,
)

_MIXER_OF_BLOCKS, _ATTENTION_OF_BLOCKS = "GE", "*E"
"""A block of Qwen3-Next, with a gated delta net or with attention."""
_LETTERS = {
    **dict.fromkeys(("mamba", "linear_attention"), "M"), **dict.fromkeys(("attention", "full_attention"), "*"),
    "mlp": "-", "moe": "E",
}  # fmt: skip
"""Kinds of layers by the names that transformers gives them, before release 5 and from it on."""
_NOT_KNOWN = json.loads(Path(__file__).with_name("unknown_parts.json").read_text(encoding="utf-8"))
"""By `model_type`, a field and what it stands for, of whose times nothing is known."""
_NOT_OF_NEMOTRON = {
    "moe_latent_size": "experts narrower than the stream of tokens are not read",
    "tie_word_embeddings": "its class in transformers 5.24 has two matrices all the same",
}


def read_any_shape(text: str, *, name: str) -> ModelShape:
    """The shape of a `config.json`, hybrid or of whole blocks; raises ValueError that names what is not known."""
    try:
        config = read_json(text)
    except (ValueError, RecursionError):
        config = None
    if isinstance(config, dict) and is_hybrid_kind(config):
        return read_hybrid_shape(config, name=name)
    return read_shape(text, name=name)


def is_hybrid_kind(config: Mapping[str, Any]) -> bool:
    """Whether a configuration's `model_type` is one of hybrid models, those with unknown parts among them."""
    kind = config.get("model_type")
    return isinstance(kind, str) and (kind in _READERS or kind in _NOT_KNOWN)


def read_hybrid_shape(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape of such a configuration; raises ValueError that names the field that is missing or not known."""
    kind = config["model_type"]
    if kind in _NOT_KNOWN:
        field, what = _NOT_KNOWN[kind]
        raise ValueError(
            f"{name}: {field} = {render_value(config.get(field))}: {kind} has {what}, whose times are not known; "
            f"give a hybrid model of {', '.join(_READERS)}"
        )
    return _READERS[kind](ConfigReader(config, name))


def _listed(take: ConfigReader, *, blocks: int) -> str | None:
    """Letters of the kinds that are listed layer by layer; None: they are not. Raises ValueError for other kinds."""
    name = take.name_of("layers_block_type", "layer_types")
    if (kinds := take.config.get(name)) is None:
        return None
    letters = [_LETTERS.get(str(kind), "") for kind in kinds] if isinstance(kinds, list) else []
    if "" in letters or len(letters) != blocks:
        raise ValueError(
            f"{take.name}: {name} = {render_value(kinds)[:80]}; give one of {', '.join(_LETTERS)} for each "
            f"of {blocks} layers"
        )
    return "".join(letters)


def _nemotron(take: ConfigReader) -> ModelShape:
    """`hybrid_override_pattern` has a letter for every layer, or kinds are listed."""
    pattern = take.config.get("hybrid_override_pattern")
    stated = take.config.get(take.name_of("layers_block_type", "layer_types")) if pattern is None else pattern
    blocks = take("num_hidden_layers", len(stated) if isinstance(stated, str | list) else 0)
    listed = _listed(take, blocks=blocks)
    pattern = listed if pattern is None else pattern
    known = re.escape("".join(set(SUBLAYERS) - {"G"}))
    if not isinstance(pattern, str) or re.fullmatch(f"[{known}]+", pattern) is None or len(pattern) != blocks:
        raise ValueError(
            f"{take.name}: hybrid_override_pattern = {render_value(pattern)}; give a letter of M, *, - and E "
            f"for each of {blocks} layers"
        )
    if listed not in (None, pattern):
        raise ValueError(f"{take.name}: hybrid_override_pattern = {pattern!r}: other layers are listed; leave one out")
    for field, why in _NOT_OF_NEMOTRON.items():
        if (stated := take.config.get(field)) is not None and stated is not False:
            raise ValueError(f"{take.name}: {field} = {render_value(stated)}: {why}; give a model without it")
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    return ModelShape(
        **take.common(),
        blocks=blocks,
        inner=take("intermediate_size", take("moe_intermediate_size", 0) or None),
        is_gated=False,
        mixture=read_mixture(take) if "E" in pattern else None,
        pattern=pattern,
        mamba=_mixer(take, *names) if "M" in pattern else None,
    )


def _mixer(take: ConfigReader, *names: str, gates: int = 1, width: int | None = None) -> RecurrentShape:
    """By the names of its heads, their width (or as wide as stated here), its groups and its state."""
    heads, groups, state = take(names[0]), take.first(names[2], "mamba_n_groups"), take(names[3])
    return RecurrentShape(heads=heads, head_width=take(names[1], width), groups=groups, state=state, gates=gates)


def _qwen(take: ConfigReader) -> ModelShape:
    """Every so many blocks has attention, the others a gated delta net; all have experts."""
    blocks, every = take("num_hidden_layers"), max(1, take("full_attention_interval", 4))
    listed = _listed(take, blocks=blocks)
    attends = [letter == "*" for letter in listed] if listed else [(n + 1) % every == 0 for n in range(blocks)]
    names = ("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim")
    return ModelShape(
        **take.common(),
        blocks=2 * blocks,
        inner=take("intermediate_size"),
        has_gated_attention=True,
        mixture=read_mixture(take),
        pattern="".join(_ATTENTION_OF_BLOCKS if attending else _MIXER_OF_BLOCKS for attending in attends),
        delta=_mixer(take, *names, gates=2),
    )


def _granite(take: ConfigReader) -> ModelShape:
    """A mixer or attention, and in the same block experts, or a feed-forward part: Granite 4, and Bamba."""
    if take.config.get("mamba_d_head") == "auto":
        take = ConfigReader({**take.config, "mamba_d_head": None}, take.name)
    blocks, attending = take("num_hidden_layers"), take.config.get("attn_layer_indices")
    first = _listed(take, blocks=blocks) or ""
    if attending is not None:
        is_known = isinstance(attending, list) and all(each in range(blocks) for each in attending)
        first = "".join("*" if block in attending else "M" for block in range(blocks)) if is_known else ""
    if not first or set(first) - set("*M"):
        raise ValueError(
            f"{take.name}: attn_layer_indices = {render_value(attending)[:80]}, and layer_types = "
            f"{render_value(take.config.get('layer_types'))[:80]}; list numbers of the {blocks} blocks, or their kinds"
        )
    has_experts = take("num_local_experts", 0) > 0
    names = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state")
    expanded, heads = take("mamba_expand", 2) * take("hidden_size"), take("mamba_n_heads")
    if "M" in first and take("mamba_d_head", expanded // heads) * heads != expanded:
        told = f"mamba_d_head = {take('mamba_d_head')}: {heads} heads of mixers fill mamba_expand x hidden_size"
        raise ValueError(f"{take.name}: {told}; give {expanded // heads}")
    return ModelShape(
        **take.common(),
        blocks=2 * blocks,
        inner=take("shared_intermediate_size" if "shared_intermediate_size" in take.config else "intermediate_size"),
        mixture=read_mixture(take) if has_experts else None,
        pattern="".join(letter + ("E" if has_experts else "-") for letter in first),
        mamba=_mixer(take, *names, width=expanded // heads) if "M" in first else None,
    )


_READERS = {"nemotron_h": _nemotron, "qwen3_next": _qwen, "granitemoehybrid": _granite, "bamba": _granite}
"""By `model_type`."""
