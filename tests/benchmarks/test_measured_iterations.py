"""Iterations that others measured: what is read, how rows are called, and what shares a factor."""

import importlib.util
from itertools import groupby

import pytest

from benchmarks import measured_iterations
from benchmarks.audits import predicted_s, read_variants
from benchmarks.measured_iterations import choice_of, grouped, label_of


def test_every_row_is_read():
    """Tests that all rows of both programs are read, by what shares a factor, and called by their degrees."""
    variants = list(read_variants())
    sizes = {group: len(list(rows)) for group, rows in groupby(variants[:109], key=lambda each: each.shares_factor)}
    assert [*sizes.values()] == [26, 15, 47, 21]
    assert sizes["vTrain 3.6B, 64 A100"] == 26
    assert len(variants) == 170
    assert variants[0].measured_s == 3.5665
    assert label_of(variants[0]) == "t 1, d 64, p 1 x 1, c 1, b 8"
    assert variants[-1].shares_factor == "Megatron-Bridge, H100, FP8"
    assert label_of(variants[-1]) == "llama3-405b, t 8, d 8, p 8 x 8, c 2, b 1"


def test_what_the_audit_refuses_has_no_figure(monkeypatch: pytest.MonkeyPatch):
    """Tests that the eight rows whose weights are sharded among replicas are refused, and no others are left out."""
    monkeypatch.setattr("benchmarks.audits.play", lambda run, gpu: OneSecond)
    groups = grouped(list(read_variants()))
    assert sum(map(len, groups.values())) == 162
    assert [len(groups[f"Megatron-Bridge, {gpu}, FP8"]) for gpu in ("GB300", "GB200", "H100")] == [5, 5, 7]


class OneSecond:
    """Of one second."""

    makespan_ns = 10**9


def test_the_choice_is_the_fastest_by_prediction(monkeypatch: pytest.MonkeyPatch):
    """Tests that the row predicted fastest is named, with how far it is behind the best measured."""
    seconds = iter((3.0, 1.0, 2.0))
    monkeypatch.setattr(measured_iterations, "predicted_s", lambda variant: next(seconds))
    ((group, predictions),) = grouped(list(read_variants())[:3]).items()
    assert group == "vTrain 3.6B, 64 A100"
    assert [each for _, each in predictions] == [3.0, 1.0, 2.0]
    assert choice_of(predictions) == ("t 1, d 64, p 1 x 1, c 1, b 4", "2.0 %")
    assert choice_of([(each, 1.0) for each in list(read_variants())[-2:]]) == ("", "")


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `tables`")
def test_predictions_are_near():
    """Tests that a dense row of each kind is predicted within a third before any factor."""
    variants = list(read_variants())
    for variant in (variants[0], variants[-2]):
        assert predicted_s(variant) == pytest.approx(variant.measured_s, rel=0.35)
