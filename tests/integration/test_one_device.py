"""Weight gradients put off on one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["DenseNet-121", "MobileNetV3", "transformer"])
def test_training_is_the_same_to_the_bit(network: str):
    """Tests that losses, and parameters after 40 and 80 steps, are those of the plain order, W put off or not."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.one_device", network]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["losses equal"]
    assert answer["parameters equal after 40 and 80 steps"] == [True, True]
    assert answer["weight gradients put off"] >= 18
    assert answer["losses"][0] != answer["losses"][1]
