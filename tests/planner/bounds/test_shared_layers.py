"""Layers that exist only wider, and plans of earlier releases, whose groups overlap."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.tessel_shapes import SHAPES, make_problem
from planner.baselines.registry import make_baselines
from planner.errors import ContradictionError
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible
from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import Limits
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import WidthBytes
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner import builders
from tests.planner.builders import make_layer, make_link
from tests.planner.hasty import make_plan
from tests.planner.overlapping_plans import ends_before, random_wide_problem

SHAPE = {shape.name: shape for shape in SHAPES}

EVERYONE = "d0+d1+d2+d3"


def m_shape(num_microbatches: int = 2) -> Problem:
    """A layer that all four devices share before four layers in a row."""
    return make_problem(SHAPE["M"], num_microbatches)


def m_plan(problem: Problem) -> Plan:
    """One microbatch after the other."""
    stages = [f"W @ {EVERYONE}", "a @ d0", "b @ d1", "c @ d2", "d @ d3"]
    forward = [f"0F{m} {{0}}F{m} {{0}}I{m} 0I{m}" for m in range(problem.num_microbatches)]
    own = {f"d{s - 1}": " ".join(forward).format(s) for s in (1, 2, 3, 4)}
    return builders.make_plan(problem, stages, own)


def wide_pair(*, max_width: int, **fields: object) -> Problem:
    """A layer with a cost at width 2 only, on two devices."""
    layer = make_layer("pair", (1, 1, 0), **fields)
    costs = tuple(replace(cost, width=2) for cost in layer.costs)
    return builders.make_problem([replace(layer, costs=costs)], [make_link("a b")], max_width=max_width)


def test_a_layer_may_have_costs_at_larger_widths_only():
    """Tests that such a layer is accepted where the options allow a width that it has, and says which ones it has."""
    bytes_there = (WidthBytes(width=2, state_bytes=0, stash_bytes=0),)
    problem = wide_pair(max_width=2, wider=bytes_there)
    assert problem.only_wider == ("pair",)
    assert problem.widths_of(problem.profile.layers[0], "gpu") == (2,)
    with pytest.raises(ValueError, match="has costs on 'gpu' at width 2 only, but max_width = 1"):
        wide_pair(max_width=1, wider=bytes_there)
    with pytest.raises(ValueError, match=r"it has no bytes \(`wider`\) at 2"):
        wide_pair(max_width=2)


def test_baselines_are_left_out_with_their_reason():
    """Tests that every method has a row, without a plan, that names the layer."""
    problem = m_shape()
    rows = list(make_baselines(problem, CostModel(problem)))
    assert {"GPipe", "1F1B", "data parallel", "SPP"} <= {row.name for row in rows}
    assert {row.note for row in rows} == {"has stages on single devices, and layer 'W' has no cost at width 1"}
    assert all(row.plan is None for row in rows)


def test_an_action_keeps_all_devices_of_its_group_busy():
    """Tests that the core plays overlapping groups by the rule, and that the judge believes no other times."""
    problem = m_shape()
    plan = m_plan(problem)
    assert verify(problem, plan).passed
    timeline, reading = simulate(problem, plan), Reading(problem, plan)
    assert timeline.makespan_ns == 2 * (2 + 4 * 4)
    for device, moved in ((d, m) for d in ("d0", "d1", "d3") for m in (-1, 1)):
        word = list(timeline.actions[device])
        second = next(place for place, timed in enumerate(word) if str(timed.action) == "0F1")
        timed = word[second]
        word[second] = timed._replace(start_ns=timed.start_ns + moved, end_ns=timed.end_ns + moved)
        forged = replace(timeline, actions={**timeline.actions, device: tuple(word)})
        assert check_times(reading, forged).inconsistencies != ()


def test_orders_that_wait_for_each_other_are_refused():
    """Tests that a wide action that comes too early for one member is a deadlock."""
    problem, plan = m_shape(), m_plan(m_shape())
    own = [f"0F0 {s}F0 {s}I0 0F1 0I0 {s}F1 {s}I1 0I1" for s in (1, 2, 3)]
    words = dict(zip(["d0", "d1", "d2", "d3"], [*own, "0F0 0F1 4F0 4I0 0I0 4F1 4I1 0I1"], strict=True))
    late = builders.make_plan(problem, list(plan.stages), words)
    assert [violation.rule for violation in verify(problem, late).violations] == ["deadlock"]


@pytest.mark.parametrize(("name", "steps"), [("M", 60), ("K", 52)])
def test_tessel_shapes_are_bounded(name: str, steps: int):
    """Tests that nothing is below 60 and 52 steps in M and K at 8 microbatches, which earlier releases reached."""
    problem = make_problem(SHAPE[name], 8)
    bound = make_bound(problem, CostModel(problem))
    assert (bound.kind, bound.value_ns, check_certificate(problem, bound.certificate)) == ("shared", steps, steps)


def test_questions_whose_plans_overlap_are_refused():
    """Tests that a layer that needs all devices beside others, and groups placed so, end with both statements."""
    problem = m_shape()
    with pytest.raises(ContradictionError, match=r"'W' was measured at width 4 only.*'a' not at"):
        make_plan(problem, limits=Limits(max_rounds=1))
    placed = replace(
        problem.options,
        partition=tuple(stage.layers for stage in m_plan(problem).stages),
        placement=tuple(stage.replicas for stage in m_plan(problem).stages),
    )
    with pytest.raises(ContradictionError, match=r"the group d0\+d1\+d2\+d3 and stage 1 the group d0, which overlap"):
        make_plan(replace(problem, options=placed), limits=Limits(max_rounds=1))


def test_bounds_hold_for_layers_that_exist_only_wider():
    """Tests that no plan of a random small problem, whatever its groups, ends before its bound; infeasible means so.

    Some bounds are reached: they are not just small.
    """
    reached = 0
    for seed in range(shortened(8, whole=1_100)):
        problem = random_wide_problem(Random(seed))
        costs = CostModel(problem)
        if prove_infeasible(problem, costs) is not None:
            assert ends_before(problem, 10**9) is None
            continue
        bound = make_bound(problem, costs, time_limit_s=0.05, make_covering=Covering)
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        assert ends_before(problem, bound.value_ns) is None, (seed, bound.kind)
        reached += seed % 4 == 0 and ends_before(problem, bound.value_ns + 1) is not None
    assert reached


def test_other_certificates_of_shared_layers_are_refused():
    """Tests that a certificate of kind `shared` neither proves more than it does, nor holds without such layers."""
    problem = m_shape(8)
    certificate = make_bound(problem, CostModel(problem)).certificate
    with pytest.raises(ValueError, match="make the bound again"):
        check_certificate(problem, {**certificate, "value_ns": certificate["value_ns"] + 1})
    with pytest.raises(ValueError, match="fields missing or too many"):
        check_certificate(problem, {key: certificate[key] for key in ("kind", "value_ns")})
    other = make_problem(SHAPE["V"], 8)
    with pytest.raises(ValueError, match="a bound of kind 'shared' does not hold"):
        check_certificate(other, certificate)
