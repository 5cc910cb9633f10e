"""Nearly equal layers: the bound of the rounded problem against every layout, and against certificates made up."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from planner.bounds import rounded_times
from planner.bounds.loop import loop_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.export.looped_pipelines import as_looped
from planner.layout.costs import CostModel
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.model_profile import LayerCost
from tests.long_runs import shortened
from tests.planner.bounds.loop.test_loop_bound import any_chain, blocks_with_heavy_ends, every_layout


def nearly(problem: Problem, rng: Random, *, share: float = 0.05, scale: int = 1_000) -> Problem:
    """Times in finer units, each up to a share longer or shorter."""

    def change(cost: LayerCost) -> LayerCost:
        def near(ns: int) -> int:
            return round(scale * ns * (1 + rng.uniform(-share, share)))

        input_grad, weight_grad = near(cost.input_grad_ns), near(cost.weight_grad_ns)
        backward = None if cost.backward_ns is None else min(near(cost.backward_ns), input_grad + weight_grad)
        times = {"forward_ns": near(cost.forward_ns), "input_grad_ns": input_grad, "weight_grad_ns": weight_grad}
        return replace(cost, backward_ns=backward, **times)

    layers = tuple(replace(layer, costs=tuple(map(change, layer.costs))) for layer in problem.profile.layers)
    return replace(problem, profile=replace(problem.profile, layers=layers))


def rounded_bound(problem: Problem, *, tolerance: int = 120) -> dict[str, Any] | None:
    """A certificate of the rounded problem, as earlier releases made them; None where it shows nothing."""
    rounded = rounded_times.rounded_problem(problem, tolerance)
    least = Least(rounded, CostModel(rounded))
    found = loop_bound.raise_bound(least, 0) if loop_bound.applies_to(least) else None
    if found is None:
        return None
    value = found[0] + least.optimizer_ns
    return {
        "kind": "rounded",
        "value_ns": value,
        "tolerance": tolerance,
        "rest": {"kind": "loop", "value_ns": value, **found[1]},
    }


@pytest.mark.parametrize("make", [any_chain, blocks_with_heavy_ends])
def test_no_layout_is_denied(make: Any):
    """Tests that no layout of random problems is below what the certificate proves."""
    rng, above = Random(11), 0
    for _ in range(shortened(6, whole=400)):
        problem = nearly(make(rng), rng)
        certificate = rounded_bound(problem)
        if certificate is None:
            continue
        value = check_certificate(problem, certificate)
        costs = CostModel(problem)
        for stages in every_layout(problem):
            try:
                end = simulate(problem, as_looped(problem, stages), costs=costs).makespan_ns
            except ValueError:  # not measured at that share, or a route is missing
                continue
            assert end >= value
        above += 1
    assert above


def test_equal_blocks_keep_their_bound():
    """Tests that blocks that differ by 2 % have a bound at most 2 % below that of equal ones."""
    rng = Random(3)
    while True:
        problem = blocks_with_heavy_ends(rng)
        if make_bound(problem, CostModel(problem)).kind in ("counting", "loop", "cuts"):
            break
    equal = nearly(problem, rng, share=0)
    clean = make_bound(equal, CostModel(equal)).value_ns
    near = nearly(problem, rng, share=0.02)
    assert make_bound(near, CostModel(near)).value_ns >= 0.98 * clean


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tolerance": 0}, "tolerance = 0 is not an integer from 1"),
        ({"tolerance": 1_001}, "tolerance = 1001 is not an integer"),
        ({"tolerance": 50.0}, "tolerance = 50.0 is not an integer"),
        ({"tolerance": True}, "tolerance = True is not an integer"),
        ({"rest": {"kind": "path", "value_ns": 1}}, "is not of kind 'counting' or 'loop'"),
        ({"rest": 7}, "rest = 7 is not of kind"),
        ({"value_ns": 1}, "it states 1 ns but proves"),
    ],
)
def test_what_is_made_up_is_refused(fields: dict[str, Any], message: str):
    """Tests that the tolerance, the kind of the rest and the value are looked at."""
    problem = nearly(blocks_with_heavy_ends(Random(5)), Random(5))
    certificate = rounded_bound(problem)
    assert certificate is not None
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, {**certificate, **fields})


def test_no_time_is_longer():
    """Tests that every time is at most its own, within the tolerance, and that classes are cut from the least on."""
    problem = nearly(blocks_with_heavy_ends(Random(5)), Random(6))
    rounded = rounded_times.rounded_problem(problem, 120)
    for layer, other in zip(problem.profile.layers, rounded.profile.layers, strict=True):
        for name in ("forward_ns", "input_grad_ns", "weight_grad_ns"):
            own, less = getattr(layer.costs[0], name), getattr(other.costs[0], name)
            assert less <= own <= 1.12 * less
    assert len({layer.costs[0].forward_ns for layer in rounded.profile.layers}) < len(rounded.profile.layers)
