"""Weight gradients that wait, kind of layer by kind of layer."""

import json
from pathlib import Path

from tests.integration.forked_ranks import run_alone

WORKER = Path(__file__).parents[3] / "integration/deferred_worker.py"


def test_put_off_gradients_are_the_same_to_the_bit():
    """Tests that a layer's weight gradient is absent until it is asked for, and then equals a plain backward's."""
    answers = json.loads(run_alone(str(WORKER)))
    assert len(answers) >= 25
    assert {name: wrong for name, wrong in answers.items() if wrong} == {}
