"""Shapes of hybrid models, and what their parts take by counted operations."""

from typing import Any

import pytest

from benchmarks.recipe_models import NEMOTRON_H, QWEN3_NEXT
from profiles.estimates.hybrid_shapes import is_hybrid_kind, read_hybrid_shape


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
