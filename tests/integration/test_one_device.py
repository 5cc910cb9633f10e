"""Weight gradients put off on one device."""

import json
from typing import Any

import pytest

from tests.integration.forked_ranks import run_alone
from tests.long_runs import shortened

NETWORKS = ["DenseNet-121", "MobileNetV3", "transformer"]
"""Those of `tests.integration.one_device`, which imports torch: three seconds for every process that collects tests."""


def answer_of(module: str, *arguments: str) -> dict[str, Any]:
    """What a process with one thread prints."""
    answer: dict[str, Any] = json.loads(run_alone(module, *arguments))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_training_is_the_same_to_the_bit(network: str):
    """Tests that losses, and parameters after half and all of dozens of steps, are the same with W put off or not."""
    steps = shortened(8, whole=80)
    answer = answer_of("tests.integration.one_device", network, "--steps", str(steps))
    assert answer["steps"] == [steps // 2, steps]
    assert answer["losses equal"]
    assert answer["parameters equal after half and all steps"] == [True, True]
    assert answer["weight gradients put off"] >= 18
    assert answer["losses"][0] != answer["losses"][1]
