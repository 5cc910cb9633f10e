"""Operations counted instead of timed: tests of profiles/estimates/operation_counts.py."""

import pytest

from benchmarks.recipe_models import QWEN3_NEXT
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.hybrid_shapes import read_hybrid_shape
from profiles.estimates.operation_counts import CountedOperations


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
