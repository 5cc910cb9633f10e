"""Weights of a block: tests of profiles/estimates/block_weights.py."""

import pytest

from profiles.configurations.known_models import MODELS
from profiles.estimates.block_operations import Run
from profiles.estimates.block_weights import block_weights, weight_products


@pytest.mark.parametrize(
    ("model", "block", "wanted"),
    [
        ("llama3-8b", 0, 4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336),
        ("gpt3-175b", 0, 12 * 12288**2),
        ("deepseek-v3", 0, 187_105_280 + 3 * 7168 * 18432),
        ("deepseek-v3", 3, 187_105_280 + 7168 * 256 + 257 * 3 * 7168 * 2048),
    ],
)
def test_weights_by_hand(model: str, block: int, wanted: int) -> None:
    """Tests that dense blocks, latent attention and experts with their router weigh what their matrices do."""
    shape, _ = MODELS[model]
    assert block_weights(shape, Run(samples=1, sequence=1), block=block) == wanted


def test_fewer_weights_on_each_of_several_devices() -> None:
    """Tests that heads and widths are shared by tensor parallelism, and scores of unfused attention are no weights."""
    shape, _ = MODELS["llama3-8b"]
    whole, half = (Run(samples=1, sequence=8, degree=degree) for degree in (1, 2))
    assert 2 * block_weights(shape, half, block=0) == block_weights(shape, whole, block=0)
    unfused = Run(samples=1, sequence=8, fused_attention=False)
    assert weight_products(shape, unfused, block=0) == weight_products(shape, whole, block=0)
