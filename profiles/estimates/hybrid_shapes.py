"""Shapes of hybrid models, whose blocks are parts of their own: attention, feed-forward part, experts, mixers."""

import re
from collections.abc import Mapping
from typing import Any

from profiles.documents.refusal import render_value
from profiles.estimates.model_shapes import SUBLAYERS, ConfigReader, ExpertShape, ModelShape, RecurrentShape

_MIXER_OF_BLOCKS, _ATTENTION_OF_BLOCKS = "GE", "*E"
"""A block of Qwen3-Next, with a gated delta net or with attention."""


def is_hybrid_kind(config: Mapping[str, Any]) -> bool:
    """Whether a configuration's `model_type` is read here."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in _READERS


def read_hybrid_shape(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape of such a configuration; raises ValueError that names the field that is missing or not known."""
    return _READERS[config["model_type"]](ConfigReader(config, name))


def _nemotron(take: ConfigReader) -> ModelShape:
    """`hybrid_override_pattern` has a letter for every layer."""
    pattern = take.config.get("hybrid_override_pattern")
    blocks = take("num_hidden_layers", len(pattern) if isinstance(pattern, str) else 0)
    known = re.escape("".join(set(SUBLAYERS) - {"G"}))
    if not isinstance(pattern, str) or re.fullmatch(f"[{known}]+", pattern) is None or len(pattern) != blocks:
        raise ValueError(
            f"{take.name}: hybrid_override_pattern = {render_value(pattern)}; give a letter of M, *, - and E "
            f"for each of {blocks} layers"
        )
    inner = take("intermediate_size", take("moe_intermediate_size", 0) or None)
    return ModelShape(
        name=take.name,
        blocks=blocks,
        hidden=take("hidden_size"),
        heads=take("num_attention_heads"),
        key_value_heads=take("num_key_value_heads", take("num_attention_heads")),
        head_width=take(
            "head_dim", take("attention_head_dim", take("hidden_size") // max(1, take("num_attention_heads")))
        ),
        inner=inner,
        vocabulary=take("vocab_size"),
        is_gated=False,
        mixture=_nemotron_experts(take) if "E" in pattern else None,
        pattern=pattern,
        mamba=RecurrentShape(
            heads=take("mamba_num_heads"),
            head_width=take("mamba_head_dim"),
            groups=take("n_groups"),
            state=take("ssm_state_size"),
            gates=1,
        )
        if "M" in pattern
        else None,
    )


def _nemotron_experts(take: ConfigReader) -> ExpertShape:
    inner = take("moe_intermediate_size")
    return ExpertShape(
        experts=take("n_routed_experts"),
        chosen=take("num_experts_per_tok"),
        inner=inner,
        shared_inner=take("moe_shared_expert_intermediate_size", inner * take("n_shared_experts", 0)),
    )


def _qwen(take: ConfigReader) -> ModelShape:
    """Every so many blocks has attention, the others a gated delta net; all have experts."""
    blocks, every = take("num_hidden_layers"), max(1, take("full_attention_interval", 4))
    kinds = take.config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == blocks:
        attends = [kind == "full_attention" for kind in kinds]
    else:
        attends = [(block + 1) % every == 0 for block in range(blocks)]
    dense = take.config.get("mlp_only_layers") or take("decoder_sparse_step", 1) != 1
    if dense:
        raise ValueError(
            f"{take.name}: mlp_only_layers, decoder_sparse_step: blocks without experts are not read; leave them out"
        )
    return ModelShape(
        name=take.name,
        blocks=2 * blocks,
        hidden=take("hidden_size"),
        heads=take("num_attention_heads"),
        key_value_heads=take("num_key_value_heads"),
        head_width=take("head_dim"),
        inner=take("intermediate_size"),
        vocabulary=take("vocab_size"),
        has_gated_attention=True,
        mixture=ExpertShape(
            experts=take("num_experts"),
            chosen=take("num_experts_per_tok"),
            inner=take("moe_intermediate_size"),
            shared_inner=take("shared_expert_intermediate_size", 0),
        ),
        pattern="".join(_ATTENTION_OF_BLOCKS if attending else _MIXER_OF_BLOCKS for attending in attends),
        delta=RecurrentShape(
            heads=take("linear_num_value_heads"),
            head_width=take("linear_value_head_dim"),
            groups=take("linear_num_key_heads"),
            state=take("linear_key_head_dim"),
            gates=2,
        ),
    )


_READERS = {"nemotron_h": _nemotron, "qwen3_next": _qwen}
"""By `model_type`."""
