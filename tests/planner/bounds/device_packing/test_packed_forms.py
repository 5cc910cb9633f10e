"""Tests of planner/bounds/device_packing/packed_forms.py."""

from dataclasses import replace
from typing import Any

import numpy
import pytest

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import fitting_boundaries
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from profiles.model_profile import WidthBytes
from tests.planner.bounds.test_stage_forms import two_equal_layers


def least_of(problem: Problem, **options: Any) -> Least:
    """Least costs of the problem under other options."""
    asked = replace(problem, options=replace(problem.options, **options))
    return Least(asked, CostModel(asked))


def test_what_levels_leave():
    """Tests that of 20 bytes in two layers, a quarter and half of what recomputation saves cost a part of its time.

    Each layer leaves 10 bytes, or 2 after recomputing 10: 8 bytes cost 10 at most.
    """
    forms = Boundaries(least_of(two_equal_layers(memory=19), recompute_layers=True), levels=4).forms
    both = numpy.zeros(4, dtype=numpy.int64)
    least, most, again = forms.leave(both, both + 2, form=numpy.arange(4))
    assert (least.tolist(), most[:3].tolist()) == ([0, 5, 10, 15], [5, 10, 15])
    assert again.tolist() == [18, 12, 6, 0]


def test_a_group_takes_all_of_its_devices():
    """Tests that a stage of two devices is a form of its own, and that least figures count both of them."""
    problem = two_equal_layers(memory=40)
    (layer, *_), (cost, *_) = problem.profile.layers, problem.profile.layers[0].costs
    wider = WidthBytes(width=2, parameter_bytes=1, state_bytes=0, stash_bytes=6, checkpoint_bytes=1)
    layers = tuple(
        replace(layer, name=name, costs=(cost, replace(cost, width=2, forward_ns=4)), wider=(wider,))
        for name in ("l0", "l1")
    )
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    boundaries = Boundaries(least_of(problem, max_width=2, recompute=False))
    assert boundaries.forms.width.tolist() == [1, 2]
    assert boundaries.forms.held.tolist() == [[0, 10, 20], [0, 6, 12]]
    assert (boundaries.forward.tolist(), boundaries.held.tolist()) == ([0, 8, 16], [0, 10, 20])
    assert boundaries.used == {1, 2}


def test_levels_where_they_fit():
    """Tests that levels are told apart where layers or microbatches decide, as many as the effort can list."""
    problem = two_equal_layers(memory=19)

    def levels(effort: int, **options: bool) -> list[int]:
        least = least_of(problem, max_stages_per_device=2, **options)
        return [each.levels for each in fitting_boundaries(least, 1_000, effort=effort)]

    assert levels(10**6) == [1]
    assert levels(10**6, recompute_layers=True) == levels(10**6, recompute_microbatches=True) == [4, 1]
    assert (levels(40, recompute_layers=True), levels(5, recompute_layers=True)) == ([3], [1])


@pytest.mark.parametrize(("levels", "by_layer"), [(0, True), (9, True), ("2", True), (True, True), (2, False)])
def test_levels_that_a_certificate_cannot_have(levels, by_layer):
    """Tests that levels are refused beyond eight, and where stages recompute as a whole."""
    problem = two_equal_layers(memory=19)
    problem = replace(problem, options=replace(problem.options, recompute_layers=by_layer))
    certificate = {"kind": "packing", "value_ns": 2, "cases": [[[], []]], "levels": levels}
    with pytest.raises(ValueError, match=r"^certificate: levels = .* make the bound again"):
        check_certificate(problem, certificate)
