"""Reverse first-k on real processes."""

import json

import pytest

from tests.integration.forked_ranks import run_module
from tests.long_runs import long_only, shortened


@pytest.mark.parametrize("count", shortened([2], whole=[2, 4]))
def test_training_is_the_same_to_the_bit(count: int):
    """Tests that losses, and parameters after half and all of dozens of steps, are those of the usual order."""
    steps = shortened(24, whole=80)
    answer = json.loads(run_module("tests.integration.first_k_worker", count, arguments=["exact", str(steps)]))
    assert answer["steps"] == [steps // 2, steps]
    assert answer["losses_equal"]
    assert answer["parameters_equal"] == [True, True]
    assert answer["losses"][1] < answer["losses"][0]


@long_only
@pytest.mark.slow
def test_chosen_k_is_faster_on_a_slow_link():
    """Tests that two processes train faster with the chosen k than in the usual order, on a throttled link."""
    from tests.integration.first_k_worker import LAYERS

    answer = json.loads(
        run_module("tests.integration.first_k_worker", 2, arguments=["speed", shortened("1", whole="2")])
    )
    assert 0 < answer["chosen"] < LAYERS
    usual, chosen = (sum(answer["seconds"][str(k)]) for k in (0, answer["chosen"]))
    assert chosen < usual
