"""Models by short names, by their published configurations: tests of profiles/configurations/known_models.py."""

import json

import pytest

from benchmarks.recipe_models import NEMOTRON_H
from profiles.configurations.known_models import MODELS, find_model, find_sheet, find_whole_model, known_name
from profiles.estimates.block_operations import Run
from profiles.estimates.block_weights import block_weights


def test_known_models_and_gpus() -> None:
    """Tests that models have as many weights as they say, and GPUs are found by any of their names."""
    billions = {"llama3-8b": 8.03, "llama3-70b": 70.5, "llama3-405b": 405.8, "gpt3-175b": 174.6, "mixtral-8x7b": 46.7}
    for name, wanted in billions.items():
        shape, _ = MODELS[name]
        experts = 1 if shape.mixture is None else shape.mixture.experts
        attention = shape.hidden * shape.head_width * 2 * (shape.heads + shape.key_value_heads)
        block = attention + experts * (2 + shape.is_gated) * shape.hidden * shape.inner
        tables = (1 if name == "gpt3-175b" else 2) * shape.vocabulary * shape.hidden
        assert (shape.blocks * block + tables) / 1e9 == pytest.approx(wanted, rel=0.002), name
    assert find_sheet("H100").name == find_sheet("h100-sxm").name == "h100_sxm"
    with pytest.raises(ValueError, match="give one of a100"):
        find_sheet("x1")


@pytest.mark.parametrize(
    ("published", "short"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("llama3.1_405B.yaml", "llama3-405b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("/data/models/mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Llama-3.2-1B", "llama3.2-1b"),
        ("meta-llama/Llama-3.2-11B-Vision", None),
        ("Qwen/Qwen3-VL-8B-Instruct", None),
        ("nvidia/Llama-3.1-8B-Nemotron", None),
    ],
)
def test_published_names(published: str, short: str | None) -> None:
    """Tests that editions of one shape have its name, and other models have none."""
    assert known_name(published) == short
    if short is not None:
        assert find_model(published) == MODELS[short]


def test_hybrid_models_have_no_whole_blocks() -> None:
    """Tests that a hybrid model's config.json is read, and refused where a program knows whole blocks alone."""
    config = json.dumps(NEMOTRON_H)
    assert find_model(config)[0].pattern == NEMOTRON_H["hybrid_override_pattern"]
    with pytest.raises(ValueError, match="torchtitan has no layers of a hybrid model's kinds"):
        find_whole_model(config, program="torchtitan")
    assert find_whole_model("llama3-8b", program="torchtitan") == MODELS["llama3-8b"]


@pytest.mark.parametrize(
    ("published", "billions"),
    [
        ("meta-llama/Llama-3.2-3B-Instruct", 3.21), ("Qwen/Qwen2.5-7B-Instruct", 7.62), ("Qwen/Qwen3-4B-FP8", 4.02),
        ("Qwen/Qwen2.5-72B", 72.7), ("zai-org/GLM-4.5-Air/", 106.85), ("moonshotai/Kimi-K2-Instruct", 1026),
        ("moonshotai/Moonlight-16B-A3B-Instruct", 15.96),
    ],
)  # fmt: skip
def test_published_names_of_other_families(published: str, billions: float) -> None:
    """Tests that they are known, and that their weights are as many as their makers say."""
    shape, _ = find_model(published)
    blocks = sum(block_weights(shape, Run(samples=1, sequence=1), block=block) for block in range(shape.blocks))
    whole = blocks + (2 - shape.is_tied) * shape.vocabulary * shape.hidden
    assert whole / 1e9 == pytest.approx(billions, rel=0.002)
