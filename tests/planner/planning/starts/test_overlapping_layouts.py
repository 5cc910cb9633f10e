"""Layers that exist only wider, and plans whose groups overlap."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.tessel_shapes import SHAPES, make_problem
from planner.baselines.registry import make_baselines
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible
from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.layout.costs import CostModel
from planner.lowering import make_orders, make_plan_from_orders, make_schedule_instance
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.planning.starts.overlapping_layouts import OverlappingLayouts, narrow_problem, needs_overlaps
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import WidthBytes
from solver_models.covering import Covering
from solver_models.schedule.evaluation import play
from solver_models.schedule.serial_schedule import one_by_one
from tests.long_runs import shortened
from tests.planner import builders
from tests.planner.builders import make_layer, make_link, make_stage
from tests.planner.hasty import make_plan
from tests.planner.overlapping_plans import ends_before, random_wide_problem

SHAPE = {shape.name: shape for shape in SHAPES}

EVERYONE = "d0+d1+d2+d3"


def m_shape(num_microbatches: int = 2) -> Problem:
    """A layer that all four devices share before four layers in a row."""
    return make_problem(SHAPE["M"], num_microbatches)


def m_stages(*, wide: str = EVERYONE) -> tuple[Stage, ...]:
    return tuple(map(make_stage, [f"W @ {wide}", "a @ d0", "b @ d1", "c @ d2", "d @ d3"]))


def m_plan(problem: Problem) -> Plan:
    """One microbatch after the other."""
    stages = m_stages()
    instance = make_schedule_instance(problem, stages, costs=CostModel(problem))
    return make_plan_from_orders(problem, stages, device_orders=one_by_one(instance))


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
    """Tests that a wide action that comes too early for one member is a deadlock, for the judge and for the core."""
    problem, stages = m_shape(), m_stages()
    own = [f"0F0 {s}F0 {s}I0 0F1 0I0 {s}F1 {s}I1 0I1" for s in (1, 2, 3)]
    words = dict(zip(["d0", "d1", "d2", "d3"], [*own, "0F0 0F1 4F0 4I0 0I0 4F1 4I1 0I1"], strict=True))
    plan = builders.make_plan(problem, list(stages), words)
    assert [violation.rule for violation in verify(problem, plan).violations] == ["deadlock"]
    instance = make_schedule_instance(problem, stages, costs=CostModel(problem))
    assert play(instance, make_orders(problem, plan)) is None


def test_groups_that_are_equal_or_disjoint_act_as_one_device():
    """Tests that only lanes of overlapping plans have several devices, and that their budgets are each device's own."""
    problem = m_shape()
    apart = (make_stage(f"W a b c d @ {EVERYONE}"),)
    costs = tuple(replace(layer.costs[0], width=4) for layer in problem.profile.layers)
    layers = tuple(
        replace(layer, costs=(cost,), wider=(WidthBytes(width=4, state_bytes=0, stash_bytes=0),))
        for layer, cost in zip(problem.profile.layers, costs, strict=True)
    )
    wide = replace(problem, profile=replace(problem.profile, layers=layers))
    (lane,) = make_schedule_instance(wide, apart, costs=CostModel(wide)).replicas
    assert lane.devices == (0,)
    lanes = make_schedule_instance(problem, m_stages(wide="d2+d0+d1+d3"), costs=CostModel(problem)).replicas
    assert [lane.devices for lane in lanes] == [(2, 0, 1, 3), (0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(("name", "steps"), [("M", 60), ("K", 52)])
def test_tessel_shapes_are_proved_optimal(name: str, steps: int):
    """Tests that M and K have plans of 60 and 52 steps at 8 microbatches, and that nothing is below."""
    problem = make_problem(SHAPE[name], 8)
    bound = make_bound(problem, CostModel(problem))
    assert (bound.kind, bound.value_ns, check_certificate(problem, bound.certificate)) == ("shared", steps, steps)
    if name == "K":
        plan = make_plan(problem, limits=Limits(max_rounds=1))
        assert plan.evidence is not None
        assert (plan.evidence.makespan_ns, plan.evidence.solution_status) == (steps, "optimal")
        assert verify(problem, plan).passed


def test_given_stages_that_overlap_are_ordered():
    """Tests that a placement whose groups overlap gets its best order."""
    stages = m_stages()
    problem = m_shape(3)
    options = replace(
        problem.options,
        partition=tuple(stage.layers for stage in stages),
        placement=tuple(stage.replicas for stage in stages),
    )
    problem = replace(problem, options=options)
    assert needs_overlaps(problem)
    plan = make_plan(problem, limits=Limits(max_rounds=12))
    assert plan.stages == stages
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == plan.evidence.lower_bound_ns == 3 * 2 + (3 + 3) * 4


def test_stages_are_cut_where_a_wide_layer_lies_between():
    """Tests that layers before and after a wide one never share a stage, and that a group begins with a neighbour."""
    problem = make_problem(replace(SHAPE["NN"], chunks=4), 2)
    layouts = OverlappingLayouts(problem)
    base = [make_stage("a @ d3"), make_stage("b c @ d2"), make_stage("d @ d0")]
    first = next(layouts.around(base, most=4, seed=0))
    assert [" ".join(stage.layers) for stage in first] == ["W", "a", "b", "X", "c", "d"]
    assert [stage.replicas[0][0] for stage in first] == ["d3", "d3", "d2", "d2", "d2", "d0"]
    assert all(len(stages) == 6 for stages in layouts.around(base, most=4, seed=0))
    narrow = narrow_problem(problem, layouts.units)
    assert narrow is not None
    assert narrow.profile.topological_order == ("a", "b", "c", "d")
    assert {(edge.producer, edge.consumer) for edge in narrow.profile.edges} == {("a", "b"), ("b", "c"), ("c", "d")}
    assert narrow.options.max_stages_per_device == 2


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
