"""The cuts bound: against every layout of random problems, on a recipe's problem, against made-up certificates."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.layouts import read_problem
from planner.bounds.loop import cuts_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.export.looped_pipelines import as_looped
from planner.layout.costs import CostModel
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import LayerCost
from tests.long_runs import shortened
from tests.planner.bounds.loop.test_loop_bound import (
    any_chain,
    any_map,
    blocks_with_heavy_ends,
    every_layout,
    proved,
    tight_loop,
)
from tests.planner.planning.starts.test_looped_shapes import every_plan

MUCH = 10**7
"""More effort than any of these problems needs."""


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


def nearly_equal(rng: Random) -> Problem:
    """Blocks that differ by up to 5 %, with heavier ends."""
    return nearly(blocks_with_heavy_ends(rng), rng)


def by_cuts(problem: Problem, *, reached: int) -> int:
    """The largest makespan below which cuts deny every plan."""
    least = Least(problem, CostModel(problem))
    found = None
    if cuts_bound.applies_to(least):
        found = cuts_bound.raise_bound(least, 0, reached=reached - least.optimizer_ns, effort=MUCH)
    return 0 if found is None else found[0] + least.optimizer_ns


@pytest.mark.parametrize("make", [any_chain, blocks_with_heavy_ends, nearly_equal])
def test_no_layout_is_denied(make):
    """Tests that on random problems no layout, of all there are, is below the bound, which is above that by units."""
    rng, above, count = Random(13), 0, 0
    while count < shortened(6, whole=1000):
        problem = make(rng)
        costs, times = CostModel(problem), []
        for stages in every_layout(problem):
            try:
                times.append(simulate(problem, as_looped(problem, stages), costs=costs).makespan_ns)
            except ValueError:  # not measured at that share, or a route is missing
                continue
        if not times:
            continue
        count += 1
        value = by_cuts(problem, reached=2 * min(times))
        assert value <= min(times)
        bound = make_bound(problem, costs, reached=2 * min(times))
        assert check_certificate(problem, bound.certificate) == bound.value_ns <= min(times)
        above += value > proved(problem)
    assert above


def test_no_width_or_recomputation_is_denied():
    """Tests that no plan of any width, replicas, chunks, cut and map that fits into memory is below the bound."""
    rng, num_above = Random(4), 0
    for _ in range(shortened(8, whole=800)):
        problem = tight_loop(rng)
        costs = CostModel(problem)
        plain = replace(problem, options=replace(problem.options, recompute_layers=False))
        plans = [replace(each, problem=problem.reference()) for each in every_plan(plain)]
        plans += [any_map(rng, plan) for plan in plans]
        timed = sorted(((simulate(problem, each, costs=costs).makespan_ns, n) for n, each in enumerate(plans)))
        best = next((time for time, n in timed if verify(problem, plans[n]).passed), None)
        if best is None:
            continue
        value = by_cuts(problem, reached=2 * best)
        assert value <= best
        num_above += value >= timed[0][0]
    assert num_above


def certificate_of(problem: Problem) -> dict[str, object]:
    found = cuts_bound.raise_bound(Least(problem, CostModel(problem)), 0, reached=10**6, effort=10**5)
    assert found is not None
    return {"kind": "cuts", "value_ns": found[0], **found[1]}


@pytest.mark.parametrize("effort", [-1, 1.5, True, "much", None, 10**9])
def test_made_up_efforts_are_refused(effort: object):
    """Tests that an effort is an integer within limits."""
    problem = blocks_with_heavy_ends(Random(1))
    with pytest.raises(ValueError, match="effort = "):
        check_certificate(problem, certificate_of(problem) | {"effort": effort})


def test_made_up_certificates_are_refused():
    """Tests that what proves less than it states, has other fields, or does not hold for the problem is refused."""
    problem = blocks_with_heavy_ends(Random(1))
    certificate = certificate_of(problem)
    assert check_certificate(problem, certificate) == certificate["value_ns"]
    with pytest.raises(ValueError, match="does not exclude"):
        check_certificate(problem, certificate | {"value_ns": 10**6})
    with pytest.raises(ValueError, match="fields missing or too many"):
        check_certificate(problem, certificate | {"ways": []})
    anywhere = replace(problem, options=replace(problem.options, order="any"))
    with pytest.raises(ValueError, match="'cuts' does not hold"):
        check_certificate(anywhere, certificate)


def test_blocks_that_differ_by_a_little_keep_their_bound():
    """Tests that a recipe's problem whose blocks differ has a bound that counting units of the least is far below."""
    problem = nearly(read_problem("deepseek-v3", ranks=16), Random(1), share=0.02, scale=1)
    value = 9_650 * 10**6
    assert check_certificate(problem, {"kind": "cuts", "value_ns": value, "effort": 225_000}) == value
    assert proved(problem) < 0.99 * value
    with pytest.raises(ValueError, match="does not exclude"):
        check_certificate(problem, {"kind": "cuts", "value_ns": value, "effort": 1_000})


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
