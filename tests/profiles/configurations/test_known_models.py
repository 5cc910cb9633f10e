"""Models by short names, by their published configurations: tests of profiles/configurations/known_models.py."""

import pytest

from profiles.configurations.known_models import MODELS, find_sheet


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
