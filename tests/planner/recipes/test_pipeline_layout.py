"""Layouts for recipes: never above those by hand, within their bound, as the simulator plays them, and refused well."""

from typing import Any

import pytest

from benchmarks.layouts import DEEPSEEK, LLAMA, RECIPES, Recipe, hand_plan, read_problem
from benchmarks.recipe_models import KIMI_K2, NEMOTRON_H, QWEN3_NEXT
from benchmarks.recipes import made_layout
from planner.recipes import CostBasis, layout, layout_builder
from planner.simulation.simulate import simulate

KEYS = {recipe.key: recipe for recipe in RECIPES}


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(each, id=f"{each.problem} on {each.ranks}",
                     marks=[pytest.mark.slow] if each.problem in (DEEPSEEK, LLAMA) else [])
        for each in KEYS.values()
    ],
)  # fmt: skip
def test_never_above_a_layout_by_hand(recipe: Recipe):
    """Tests that a layout made from a configuration takes no longer than any by hand, with a gap of 3 % at most."""
    found = made_layout(recipe)
    problem = read_problem(recipe.problem, ranks=recipe.ranks, microbatches=recipe.microbatches)
    assert isinstance(found.value, str)
    ours = simulate(problem, hand_plan(problem, found.value)).makespan_ns
    by_hand = [each.layout for each in RECIPES if each.key == recipe.key]
    assert ours <= min(simulate(problem, hand_plan(problem, each)).makespan_ns for each in by_hand)
    assert 0 <= found.gap <= 0.03


@pytest.mark.parametrize(
    ("config", "ranks", "how", "value"),
    [
        ("llama3-8b", 3, {"virtual": 1}, "Et*12|t*11|t*9L"),
        ("llama3-8b", 1, {}, "Et*32L"),
        ("llama3-8b", 32, {}, "Et|(t|)*29tt|L"),
        ("llama3-8b", 3, {"target": "deepspeed"}, [0, 13, 24, 34]),
        ("qwen3-8b", 5, {"virtual": 1}, "Et*8|t*8|t*8|t*7|t*5L"),
        (KIMI_K2, 2, {}, "Et*4|(t*4|)*14tL"),
        ("deepseek-v3", 4, {"virtual": 1}, "Et*16|t*16|t*16|t*13mL"),
        (NEMOTRON_H, 2, {"target": "megatron-hybrid", "virtual": 1}, None),
    ],
)
def test_known_layouts(config: Any, ranks: int, how: dict[str, Any], value: Any):
    """Tests that layouts are those found by hand, also where ranks divide nothing, and the same when asked again."""
    found = layout(config, ranks, **how)
    if value is None:
        assert str(found.value).replace("|", "") == NEMOTRON_H["hybrid_override_pattern"]
        assert str(found.value).count("|") == 1
    else:
        assert found.value == value
    assert layout(config, ranks, **how) == found


def test_modules_of_torchtitan():
    """Tests that every block of a model has a part, in order, between the embedding and the head."""
    parts = layout("llama3-8b", 3, target="torchtitan", virtual=2).value
    names = [name for part in parts for name in part]  # type: ignore[union-attr]
    assert names == ["tok_embeddings", *(f"layers.{number}" for number in range(32)), "norm", "lm_head"]
    assert len(parts) == 6


def test_what_ranks_hold():
    """Tests that 1F1B keeps activations of a microbatch for each rank behind and its own, and weights of its layers."""
    found = layout("llama3-8b", 4, virtual=1)
    assert found.value == "Et*9|t*9|t*8|t*6L"
    assert found.rank_activations == (4 * 9, 3 * 9, 2 * 8, 6)
    block = found.rank_weights[1] // 9
    assert found.rank_weights == (9 * block + 128256 * 4096, 9 * block, 8 * block, 6 * block + 128256 * 4096)


def test_a_layout_for_either_place_of_a_loss():
    """Tests that the default is at worst what it says, by costs with the loss in m and in L alike."""
    found = layout("deepseek-v3", 4, virtual=1)
    for place in ("m", "L"):
        sure = layout("deepseek-v3", 4, virtual=1, basis=CostBasis(mtp_loss=place))  # type: ignore[arg-type]
        assert sure.time <= found.time + 1e-9
    assert found.lower_bound <= found.time


@pytest.mark.parametrize(
    ("config", "ranks", "how", "told"),
    [
        ("llama3-8b", 0, {}, "pipeline = '0'; give a whole number"),
        ("llama3-8b", True, {}, "pipeline = 'True'"),
        ("llama3-8b", 40, {}, "33 layers on 40 ranks leave ranks empty"),
        ("llama3-8b", 8, {"virtual": 5}, "33 layers on 8 ranks have no 40 stages"),
        ("llama3-8b", 2, {"virtual": 2, "microbatches": 3}, "3 microbatches are not a multiple of 2 ranks"),
        ("llama3-8b", 4, {"virtual": 2, "target": "deepspeed"}, "DeepSpeed runs one stage per rank"),
        ("llama3-8b", 4, {"target": "jax"}, "target = 'jax' is not known; give one of megatron"),
        ("llama3-8b", 4, {"target": "megatron-hybrid"}, "no recurrent mixers"),
        (NEMOTRON_H, 4, {}, "no whole blocks; use target megatron-hybrid"),
        ("deepseek-v3", 4, {"target": "torchtitan"}, "no multi-token prediction; give CostBasis"),
        (QWEN3_NEXT, 4, {"target": "megatron-hybrid", "basis": CostBasis(predicting=1)}, "stands behind /"),
        ("llama9", 4, {}, "neither a known model nor a file"),
        ({"model_type": "t5"}, 4, {}, "model_type = \"t5\" is not read"),
        ({**KIMI_K2, "kv_lora_rank": None}, 4, {}, "kv_lora_rank = null"),
        ({**KIMI_K2, "num_nextn_predict_layers": -1}, 4, {}, "multi-token prediction = -1"),
        ({**QWEN3_NEXT, "mlp_only_layers": [1]}, 4, {}, "dense blocks then stand between those"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "MX"}, 4, {"target": "megatron-hybrid"}, "a letter of M"),
        ({"model_type": object()}, 4, {}, "config: Object of type"),
        ("llama3-8b", 4, {"basis": CostBasis(times={"t": 1, "L": 2})}, "has L, t; give E, t, L"),
        ("llama3-8b", 4, {"basis": CostBasis(times={"E": 0, "t": [1], "L": 2})}, "one, or 32, one for each block"),
        ("llama3-8b", 4, {"basis": CostBasis(times={"E": 0, "t": -1, "L": 2})}, "give numbers from 0"),
    ],
)  # fmt: skip
def test_what_is_refused(config: Any, ranks: int, how: dict[str, Any], told: str):
    """Tests that what cannot be understood, or run, is refused with value and remedy."""
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        layout(config, ranks, **how)


def test_a_builder_for_recipes():
    """Tests that a builder gives one rank nothing, and others lists of Megatron's words."""
    build = layout_builder("deepseek-v3")
    assert build(1, 1) is None
    stages = build(4, 1)
    assert stages is not None
    assert stages[0] == ["embedding", *["decoder"] * 16]
    assert stages[-1] == [*["decoder"] * 13, "mtp", "loss"]


def test_counts_that_torch_alone_interleaves():
    """Tests that torchtitan's layout claims nothing where torch has rounds of its own: 10 on 4 ranks, and not 11."""
    how: dict[str, Any] = {"target": "torchtitan", "microbatches": 10}
    with pytest.raises(ValueError, match=r"microbatches = 10: torch interleaves .* a multiple of 4, or virtual = 1"):
        layout("llama3-8b", 4, **how)
    assert layout("llama3-8b", 4, virtual=1, **how).virtual == 1
    assert layout("llama3-8b", 4, target="torchtitan", microbatches=11).virtual == 1
    assert layout("llama3-8b", 4, target="megatron", microbatches=10).virtual == 1
