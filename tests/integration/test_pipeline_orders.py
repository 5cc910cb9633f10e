"""Orders of a pipeline on real processes."""

import json

import pytest

from benchmarks.processes import run_ranks


@pytest.mark.parametrize("count", [2, 4])
def test_training_is_the_same_in_every_order(count: int):
    """Tests that fast-forwarding and modulo leave 80 steps as they were to the bit, and tasks apart to 1e-5."""
    answer = json.loads(run_ranks("benchmarks.pipeline_worker", count))
    assert answer["steps"] == [40, 80]
    assert answer["losses"][1] < 0.9 * answer["losses"][0]
    assert set(answer["orders"]) == {"fast-forward", "modulo", "tasks apart"}
    for name in ("fast-forward", "modulo"):
        assert answer["orders"][name]["losses_equal"]
        assert answer["orders"][name]["parameters_equal"] == [True, True]
    assert answer["orders"]["tasks apart"]["worst_relative_difference"] < 1e-5
