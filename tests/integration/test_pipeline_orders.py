"""Orders of a pipeline on real processes."""

import json

import pytest

from tests.integration.forked_ranks import run_module
from tests.long_runs import shortened

STEPS = shortened(24, whole=80)


@pytest.mark.parametrize("count", shortened([2], whole=[2, 4]))
def test_training_is_the_same_in_every_order(count: int):
    """Tests that fast-forwarding and modulo leave dozens of steps as they were to the bit, and tasks apart to 1e-5."""
    answer = json.loads(run_module("tests.integration.pipeline_worker", count, arguments=[str(STEPS)]))
    assert answer["steps"] == [STEPS // 2, STEPS]
    assert answer["losses"][1] < shortened(0.97, whole=0.9) * answer["losses"][0]
    assert set(answer["orders"]) == {"fast-forward", "modulo", "tasks apart"}
    for name in ("fast-forward", "modulo"):
        assert answer["orders"][name]["losses_equal"]
        assert answer["orders"][name]["parameters_equal"] == [True, True]
    assert answer["orders"]["tasks apart"]["worst_relative_difference"] < 1e-5
