"""Weight gradients that wait, kind of layer by kind of layer."""

import json
import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("deferred_worker.py")


def test_put_off_gradients_are_the_same_to_the_bit():
    """Tests that a layer's weight gradient is absent until it is asked for, and then equals a plain backward's."""
    environment = os.environ | {"PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(WORKER)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) >= 25
    assert {name: wrong for name, wrong in answers.items() if wrong} == {}
