"""Shapes of hybrid models, and what their parts take by counted operations."""

import json
from typing import Any

import pytest

from benchmarks.recipe_models import GRANITE_4, NEMOTRON_H, QWEN3_NEXT
from profiles.estimates.block_operations import Run
from profiles.estimates.block_weights import block_weights
from profiles.estimates.hybrid_shapes import is_hybrid_kind, read_any_shape, read_hybrid_shape
from profiles.estimates.model_shapes import ModelShape


def test_kinds_of_attention_may_be_listed():
    """Tests that a list of kinds overrules the interval."""
    kinds = ["full_attention", "linear_attention"] * 24
    assert read_hybrid_shape({**QWEN3_NEXT, "layer_types": kinds}, name="x").pattern == "*EGE" * 24


def test_nemotron_is_its_pattern():
    """Tests that letters are layers, without gates, experts only where the pattern has them."""
    shape = read_hybrid_shape(NEMOTRON_H, name="config.json")
    assert (shape.blocks, shape.is_gated, shape.mixture) == (52, False, None)
    assert shape.mamba is not None
    assert shape.mamba.columns == 2 * 128 * 64 + 2 * 8 * 128 + 128
    more: dict[str, Any] = {
        "hybrid_override_pattern": "ME*E", "num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    }  # fmt: skip
    mixture = read_hybrid_shape({**NEMOTRON_H, **more}, name="x").mixture
    assert mixture is not None
    assert (mixture.experts, mixture.chosen, mixture.inner, mixture.shared_inner) == (8, 2, 1856, 3712)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_hidden_layers": 50}, "a letter of M, *, - and E for each of 50 layers"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern = null"),
        ({"mamba_num_heads": None}, "mamba_num_heads = null"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], told: str):
    """Tests that what no shape follows from is refused with the field."""
    with pytest.raises(ValueError, match=told.replace("*", r"\*")):
        read_hybrid_shape({**NEMOTRON_H, **changes}, name="config.json")
    assert is_hybrid_kind(NEMOTRON_H)
    assert not is_hybrid_kind({"model_type": "llama"})


BAMBA: dict[str, Any] = {
    "model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "attn_layer_indices": [9, 18, 27],
    "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_expand": 2,
}  # fmt: skip


def weights(shape: ModelShape) -> float:
    """In billions, with embedding and head."""
    alone = Run(samples=1, sequence=1)
    blocks = sum(block_weights(shape, alone, block=block) for block in range(shape.blocks))
    return (blocks + (1 if shape.is_tied else 2) * shape.vocabulary * shape.hidden) / 1e9


@pytest.mark.parametrize(
    ("config", "pattern", "billions"),
    [
        (BAMBA, "M-" * 9 + "*-" + "M-" * 8 + "*-" + "M-" * 8 + "*-" + "M-" * 4, 9.8),
        (GRANITE_4, ("ME" * 5 + "*E" + "ME" * 4) * 4, 6.9),
        ({**GRANITE_4, "num_local_experts": 0, "layer_types": ["attention"] * 40}, "*-" * 40, 0.6),
        (NEMOTRON_H, NEMOTRON_H["hybrid_override_pattern"], 8.1),
        (QWEN3_NEXT, "GEGEGE*E" * 12, 79.7),
    ],
)
def test_published_sizes(config: dict[str, Any], pattern: str, billions: float):
    """Tests that a configuration's layers have as many weights as its model is said to have."""
    shape = read_any_shape(json.dumps(config), name="config.json")
    assert shape.pattern == pattern
    assert weights(shape) == pytest.approx(billions, rel=0.04)


def test_kinds_may_be_listed_instead_of_letters():
    """Tests that both generations of transformers' names are read, and others are refused with the field."""
    names = {"M": ("mamba", "linear_attention"), "*": ("attention", "full_attention"), "-": ("mlp", "mlp")}
    for release in (0, 1):
        listed = [names[letter][release] for letter in NEMOTRON_H["hybrid_override_pattern"]]
        kept = {name: value for name, value in NEMOTRON_H.items() if name != "hybrid_override_pattern"}
        assert read_hybrid_shape({**kept, "layers_block_type": listed}, name="x") == read_hybrid_shape(
            NEMOTRON_H, name="x"
        )
        for field in ("layer_types", "layers_block_type"):
            assert read_hybrid_shape({**kept, field: listed}, name="x").head_width == 128
        with pytest.raises(ValueError, match=r"layers_block_type = .* for each of 52 layers"):
            read_hybrid_shape({**kept, "layers_block_type": ["conv", *listed[1:]]}, name="x")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "jamba", "mamba_dt_rank": 256}, "mamba_dt_rank = 256: jamba has"),
        ({"model_type": "zamba2", "num_mem_blocks": 2}, "num_mem_blocks = 2: zamba2 has"),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 1024}, "mamba_d_ssm = 1024: falcon_h1 has"),
        ({**NEMOTRON_H, "moe_latent_size": 1024}, "moe_latent_size = 1024"),
        ({**GRANITE_4, "layer_types": None}, "layer_types = null"),
        ({**BAMBA, "attn_layer_indices": ["9"]}, r"attn_layer_indices = \[1 entries\]"),
        ({**GRANITE_4, "attn_layer_indices": [99]}, r"attn_layer_indices = \[1 entries\]"),
        ({**BAMBA, "attn_layer_indices": [9, 32]}, r"attn_layer_indices = .*list numbers of the 32 blocks"),
        ({**QWEN3_NEXT, "layer_types": ["full_attention"]}, r"layer_types = \[1 entries\]; give one of"),
        ({**QWEN3_NEXT, "layer_types": "full_attention"}, 'layer_types = "full_attention"; give one of'),
        ({**GRANITE_4, "mamba_n_heads": None}, "mamba_n_heads = null"),
        ({**GRANITE_4, "mamba_d_head": 128}, "mamba_d_head = 128: 48 heads of mixers fill .*; give 64"),
        ({**BAMBA, "shared_intermediate_size": 64}, "shared_intermediate_size = 64: bamba has none"),
        ({**QWEN3_NEXT, "layers_block_type": ["mamba"] * 48}, "layers_block_type = .*: qwen3_next has none"),
        ({**NEMOTRON_H, "attention_head_dim": 96}, "head_dim = 128 and attention_head_dim = 96 are one thing"),
        ({**NEMOTRON_H, "mamba_n_groups": 4}, "n_groups = 8 and mamba_n_groups = 4 are one thing"),
        ({**NEMOTRON_H, "layer_types": ["mlp"] * 52}, "hybrid_override_pattern = .*: other layers are listed"),
        ({**NEMOTRON_H, "tie_word_embeddings": True}, "tie_word_embeddings = true: .* two matrices"),
    ],
)
def test_unknown_parts_are_refused_by_their_field(config: dict[str, Any], told: str):
    """Tests that a hybrid model of whose layers no times are known is refused with the field that states them."""
    with pytest.raises(ValueError, match=told):
        read_any_shape(json.dumps(config), name="config.json")


def test_nemotron_has_heads_of_128_unless_it_says_otherwise():
    """Tests that the width of a head that is left out is its class', not that of the stream's share."""
    kept = {name: value for name, value in NEMOTRON_H.items() if name != "attention_head_dim"}
    assert read_hybrid_shape({**kept, "num_attention_heads": 64}, name="x").head_width == 128
    assert read_hybrid_shape({**kept, "head_dim": 64}, name="x").head_width == 64
