"""Iterations that others measured: what is read, how a model is cut, and what a factor is."""

import importlib.util
from itertools import groupby

import pytest

from benchmarks.measured_iterations import (
    Prediction,
    cut,
    factor_of,
    grouped,
    predict,
    read_bridge,
    read_vtrain,
)
from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.model_shapes import ModelShape
from profiles.model_profile import ModelProfile


def profile_of(blocks: int) -> ModelProfile:
    shape = ModelShape(
        name="toy", blocks=blocks, hidden=64, heads=4, key_value_heads=4, head_width=16, inner=64, vocabulary=64
    )
    return compose(CompositionQuestion(shape=shape, rates=[known_rates()["h100_sxm"]], sequence=64))[0]


def test_every_row_of_vtrain_is_read():
    """Tests that all rows of the four models are read, with microbatches that divide the batch."""
    trials = list(read_vtrain())
    sizes = {group: len(list(rows)) for group, rows in groupby(trials, key=lambda trial: trial.group.split(",")[0])}
    assert sizes == {"vTrain 3.6B": 26, "vTrain 18.4B": 15, "vTrain 39.1B": 47, "vTrain 175B": 21}
    assert all(trial.batch % (trial.micro * trial.data) == 0 for trial in trials)
    assert trials[0].measured_s == 3.5665


def test_models_are_cut_as_recipes_do():
    """Tests that blocks are cut evenly, or with embedding and head in the place of a block each."""
    even = cut(profile_of(8), 4)
    assert [len(part) for part in even] == [3, 2, 2, 3]
    counted = cut(profile_of(6), 4)
    assert [len(part) for part in counted] == [2, 2, 2, 2]
    assert (counted[0][0], counted[-1][-1]) == ("embedding", "head")


def test_one_factor_per_group():
    """Tests that the factor of a group is the median of measured over predicted."""
    trials = list(read_vtrain())[:3]
    predictions = [Prediction(trial=trial, seconds=trial.measured_s / n) for n, trial in enumerate(trials, start=1)]
    assert factor_of(predictions) == pytest.approx(2)
    assert list(grouped(predictions)) == ["vTrain 3.6B, 64 A100"]


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `tables`")
def test_predictions_are_near():
    """Tests that a dense row of each kind is predicted within a third before any factor."""
    dense = [next(read_vtrain()), next(trial for trial in read_bridge() if trial.gpu == "h100_sxm" and trial.data == 2)]
    for prediction in map(predict, dense):
        assert prediction.seconds == pytest.approx(prediction.trial.measured_s, rel=0.35)
