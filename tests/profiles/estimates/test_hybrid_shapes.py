"""Shapes of hybrid models, and what their parts take by counted operations."""

from typing import Any

import pytest

from benchmarks.recipe_models import NEMOTRON_H, QWEN3_NEXT
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.hybrid_shapes import is_hybrid_kind, read_hybrid_shape
from profiles.estimates.operation_counts import CountedOperations
from profiles.estimates.operations import CausalAttention, ExpertProducts, Movement, Product


def test_a_block_of_qwen3_next_is_two_parts():
    """Tests that every fourth block attends, and that multiplications per token are those of the published shape."""
    shape = read_hybrid_shape(QWEN3_NEXT, name="config.json")
    assert shape.pattern == "GEGEGE*E" * 12
    question = CompositionQuestion(shape=shape, rates=[CountedOperations()], sequence=4096)
    profile, _ = compose(question)
    million = [layer.costs[0].forward_ns / 4096 / 2 * 1000 / 1e6 for layer in profile.layers[1:-1]]
    attention = 2048 * (2 * 4096 + 2 * 512 + 4096) + 4096 * 4096
    experts = 2048 * (11 * 3 * 512 + 512)
    assert million[6] == pytest.approx(attention / 1e6, rel=1e-3)
    assert million[7] == pytest.approx(experts / 1e6, rel=1e-3)
    assert million[6] + million[7] == pytest.approx(79.7, rel=0.002)
    assert million[0] + million[1] == pytest.approx(70.9, rel=0.03)


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


def test_operations_are_counted():
    """Tests that multiplications of every kind count twice, with their additions, and what only moves not at all."""
    count = CountedOperations()
    attention = CausalAttention(samples=1, sequence=100, heads=2, key_value_heads=1, head_width=10)
    experts = ExpertProducts(tokens=10, hidden=4, inner=5, chosen=2, experts=8, groups=2)
    for operation, wanted in (
        (Product(rows=2, columns=3, inner=4), 48),
        (attention, 2 * 100 * 100 * 2 * 10),
        (experts, 2 * 3 * 10 * 2 * 4 * 5 // 2),
        (Movement(num_bytes=10**6), 0),
    ):
        assert count.price(operation).ns == pytest.approx(wanted / 1000)  # type: ignore[arg-type]
