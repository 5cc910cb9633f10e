"""Stages whose I or W is on other devices: drawn by hand, by rule, and at random."""

from dataclasses import replace

import pytest
from hypothesis import given

from api.viewer.content import plan_content
from planner.document import parse_plan, render_plan
from planner.export.trace import render_trace
from planner.judge.reading import Reading
from planner.judge.rules import split_placement
from planner.judge.times import check_times
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.drawing import draw_schedule
from planner.simulation.explain import explain
from planner.simulation.simulate import Timeline, simulate
from planner.verify import verify
from tests.planner.builders import (
    draw,
    make_layer,
    make_link,
    make_plan,
    make_problem,
    make_split,
    picture,
    with_evidence,
)
from tests.planner.judge.broken_plans import of_module, require_alone
from tests.strategies import split_cases, with_reference


def play(problem: Problem, plan: Plan) -> Timeline:
    """The timeline, after the verifier, hence the judge, has agreed with it."""
    verdict = verify(problem, plan)
    assert verdict.violations == ()
    assert verdict.timeline is not None
    second = check_times(Reading(problem, plan), verdict.timeline)
    assert second.makespan_ns == verdict.timeline.makespan_ns
    assert second.bubble == pytest.approx(verdict.timeline.bubble, abs=1e-12)
    return verdict.timeline


def one_layer(times: tuple[int, int, int], **fields: object) -> Problem:
    """Layer x, devices a, b and c, a link between any two; two microbatches unless told otherwise."""
    layer = {
        name: fields.pop(name)
        for name in ("parameter_bytes", "state_bytes", "stash_bytes", "weight_stash_bytes", "workspace_bytes", "frozen")
        if name in fields
    }
    links = [make_link("a b"), make_link("b c"), make_link("a c")]
    options = {"num_microbatches": 2, "split_placement": True} | fields
    return make_problem([make_layer("x", times, **layer)], links, **options)


# Section 3: when everything happens.


def weight_grad_elsewhere() -> tuple[Problem, Plan]:
    problem = one_layer((1, 1, 2), parameter_bytes=3, state_bytes=10, stash_bytes=4, weight_stash_bytes=2)
    words = {"a": "0F0 0I0 0F1 0I1", "b": "0W0 0W1"}
    return problem, make_plan(problem, [make_split("x @ a", weight_grad="b")], words)


def test_weight_grad_elsewhere():
    """Tests that W waits for the weight stash, and that the finished gradient returns before the iteration ends."""
    problem, plan = weight_grad_elsewhere()
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0 0I0 0F1 0I1
        b   |.   .   .   .   0W0---- 0W1----
        a>b |.   .   0b0---- 0b1----
        b>a |.   .   .   .   .   .   .   .   0b2--------
    """)
    assert (timeline.makespan_ns, timeline.span_ns) == (11, 4)
    assert timeline.bubble == pytest.approx(1 - 8 / 22)


def test_the_optimizer_waits_for_the_finished_gradient():
    """Tests that the optimizer step follows the arrival of the gradient at the owner."""
    problem, plan = weight_grad_elsewhere()
    problem = replace(problem, profile=replace(problem.profile, optimizer_ns=5))
    assert play(problem, with_reference(problem, plan)).makespan_ns == 11 + 5


def input_grad_elsewhere() -> tuple[Problem, Plan]:
    problem = one_layer((1, 2, 1), parameter_bytes=3, state_bytes=10, stash_bytes=2, weight_stash_bytes=1)
    words = {"a": "0F0 0F1 0W0 0W1", "b": "0I0 0I1"}
    return problem, make_plan(problem, [make_split("x @ a", input_grad="b")], words)


def test_input_grad_elsewhere():
    """Tests that I waits for weights and stash, which share a link, and W for the weight stash on its way back."""
    problem, plan = input_grad_elsewhere()
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   0W0 .   0W1
        b   |.   .   .   .   .   0I0---- 0I1----
        a>b |0f-1------- 0f0---- 0f1----
        b>a |.   .   .   .   .   .   .   0b0 .   0b1
    """)
    assert timeline.makespan_ns == 11


def halves() -> tuple[Problem, Plan]:
    fields = {"parameter_bytes": 1, "state_bytes": 10, "stash_bytes": 2, "weight_stash_bytes": 2}
    layers = [make_layer("x", (1, 2, 1), **fields), make_layer("y", (1, 1, 0))]
    links = [make_link("a b"), make_link("a c"), make_link("b c")]
    problem = make_problem(layers, links, edge_bytes=2, split_placement=True)
    words = {"a": "0F0 0I0 0W0", "c": "1F0 1I0", "b": "0I0"}
    return problem, make_plan(problem, [make_split("x @ a", input_grad="a 1/2, b 1/2"), "y @ c"], words)


def test_two_halves_of_input_grad():
    """Tests that both halves get half of stash and gradient and take half the time, and that W waits for both."""
    problem, plan = halves()
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0 .   .   .   .   .   0I0 .   0W0
        c   |.   .   .   1F0 1I0
        b   |.   .   .   .   .   .   0I0
        a>b |0f- 0f0
        a>c |.   0f0----
        c>a |.   .   .   .   .   1b0
        c>b |.   .   .   .   .   1b0
        b>a |.   .   .   .   .   .   .   0b0
    """)
    assert timeline.makespan_ns == 9


def both_elsewhere() -> tuple[Problem, Plan]:
    problem = one_layer((1, 1, 1), num_microbatches=1, parameter_bytes=2, stash_bytes=3, weight_stash_bytes=1)
    words = {"a": "0F0", "b": "0I0", "c": "0W0"}
    return problem, make_plan(problem, [make_split("x @ a", input_grad="b", weight_grad="c")], words)


def test_input_grad_and_weight_grad_elsewhere():
    """Tests that the weight stash goes straight from the device of I to that of W, and the gradient to the owner."""
    problem, plan = both_elsewhere()
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0
        b   |.   .   .   .   .   0I0
        c   |.   .   .   .   .   .   .   0W0
        a>b |0f-1--- 0f0--------
        b>c |.   .   .   .   .   .   0b0
        c>a |.   .   .   .   .   .   .   .   0b1----
    """)
    assert timeline.makespan_ns == 10


def test_gradients_go_straight_from_input_grad_to_input_grad():
    """Tests that neighbours whose I is elsewhere exchange the gradient there, and that on one device it stays."""
    layers = [make_layer("x", (1, 1, 0)), make_layer("y", (1, 1, 0))]
    links = [make_link("a b"), make_link("a c"), make_link("b c")]
    problem = make_problem(layers, links, edge_bytes=2, split_placement=True)
    words = {"a": "0F0", "b": "1F0", "c": "1I0 0I0"}
    plan = make_plan(problem, [make_split("x @ a", input_grad="c"), make_split("y @ b", input_grad="c")], words)
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0
        b   |.   .   .   1F0
        c   |.   .   .   .   1I0 0I0
        a>b |.   0f0----
    """)
    words = {"a": "0F0 1I0", "b": "1F0", "c": "0I0"}
    plan = make_plan(problem, [make_split("x @ a", input_grad="c"), make_split("y @ b", input_grad="a")], words)
    assert draw(problem, play(problem, plan)) == picture("""
        a   |0F0 .   .   .   1I0
        b   |.   .   .   1F0
        c   |.   .   .   .   .   .   .   0I0
        a>b |.   0f0----
        a>c |.   .   .   .   .   1b0----
    """)


def test_transfers_without_overlap_keep_both_devices_busy():
    """Tests that weights and stash come before the work of both their devices where transfers do not overlap."""
    problem = one_layer((1, 1, 0), num_microbatches=1, parameter_bytes=2, stash_bytes=1, frozen=True, overlap=False)
    plan = make_plan(problem, [make_split("x @ a", input_grad="b")], {"a": "0F0", "b": "0I0"})
    assert draw(problem, play(problem, plan)) == picture("""
        a   |.   .   0F0
        b   |.   .   .   .   0I0
        a>b |0f-1--- .   0f0
    """)


# Section 4: memory.


# Everything else that reads plans.


@given(case=split_cases())
def test_random_plans(case: tuple[Problem, Plan]):
    """Tests that random plans with split placement are valid, evaluated alike, and read as they were written."""
    problem, plan = case
    play(problem, plan)
    for some in (plan, with_evidence(problem, plan)):
        assert parse_plan(render_plan(some)) == some


@given(case=split_cases())
def test_random_plans_can_be_shown(case: tuple[Problem, Plan]):
    """Tests that picture, trace, drawing and explanation take such plans, and that the explanation adds up."""
    problem, plan = case
    timeline = simulate(problem, plan)
    assert set(plan.devices) == set(plan.schedule)
    assert len(plan_content(problem, plan, timeline=timeline)["devices"]) == len(plan.devices)
    assert render_trace(problem, plan, timeline=timeline)
    assert draw_schedule(timeline, tick_ns=1 + timeline.makespan_ns // 100)
    explanation = explain(problem, plan, timeline=timeline)
    assert all(device.total_ns == timeline.makespan_ns for device in explanation.devices)
    ends = [0, *(step.end_ns for step in explanation.path)]
    assert [step.start_ns for step in explanation.path] == ends[:-1]
    assert ends[-1] == timeline.makespan_ns


@pytest.mark.parametrize("rule", of_module(split_placement))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
