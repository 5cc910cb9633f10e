"""Models whose weights are made, or read, only where a process needs them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forked_ranks import run_alone

WORKER = Path(__file__).parents[4] / "integration/late_values_worker.py"
MODELS = ("decoder", "decoder with other names", "convolutions")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the worker found."""
    return json.loads(run_alone(str(WORKER), str(tmp_path_factory.mktemp("late"))))


@pytest.mark.parametrize("model", MODELS)
def test_weights_are_those_of_a_model_made_whole(answers: Any, model: str):
    """Tests that layers of a model without weights get those that it would have had, drawn or read, to the bit, that
    random numbers go on as after a model made whole, and that the model itself stays without weights."""
    found = answers[model]
    assert found == {"is_empty": True, "draws": True, "late": [], "read": [], "is_left": True, "tied": [True]}


def test_weights_are_made_in_any_way(answers: Any):
    """Tests that what is done to a parameter on the way (views, copies, types, functions that skip what has no values)
    is done again."""
    assert answers["replayed"] == []


def test_a_process_holds_its_part_alone(answers: Any):
    """Tests that a process which makes one block of twelve takes that and little else at most, where a model made whole
    takes all of them."""
    peaks = answers["peaks"]
    assert peaks["part"] == 4 * (2048 * 2048 + 3 * 2048)
    assert peaks["whole"] > 12 * peaks["part"]
    assert peaks["late"] < 1.25 * peaks["part"], peaks


def test_weights_that_nobody_knows_are_refused(answers: Any):
    """Tests that parameters without values, or changed since, are refused with what to write; so is a name that the
    file does not have."""
    remedy = "planner.execute.model.deferred_init.deferred_init()`, or give `weights=`"
    for name in ("empty", "changed"):
        assert answers["refused"][name].startswith("'blocks.0.norm.weight' and 47 more have no values")
        assert answers["refused"][name].endswith(remedy)
    assert "blocks.0.norm.weight of layer 'blocks.0' is not there" in answers["refused"]["missing"]
