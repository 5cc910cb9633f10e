"""Stages whose I or W is on other devices: drawn by hand, by rule, and at random."""

from dataclasses import replace

import pytest
from hypothesis import given

from api.viewer.content import plan_content
from planner.document import parse_plan, plan_to_plain, render_plan
from planner.errors import PlanError
from planner.export.torch_table import render_torch_table
from planner.export.trace import render_trace
from planner.judge.reading import Reading
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
from tests.strategies import split_cases, with_memory, with_reference


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


def test_shares_are_rounded_up():
    """Tests that thirds of time and bytes are whole nanoseconds and bytes, rounded up."""
    problem = one_layer((1, 4, 0), num_microbatches=1, parameter_bytes=0, stash_bytes=4)
    stage = make_split("x @ a", input_grad="a 1/3, b 2/3")
    timeline = play(problem, make_plan(problem, [stage], {"a": "0F0 0I0", "b": "0I0"}))
    assert draw(problem, timeline) == picture("""
        a   |0F0 0I0----
        b   |.   .   .   .   0I0--------
        a>b |.   0f0--------
    """)


# Section 4: memory.


MEMORY: dict[str, tuple[tuple[Problem, Plan], dict[str, int]]] = {
    # a: state 10, stash 4 until the end of its I. b: gradient 3, buffers 2 x 2, weight stash 2.
    "W elsewhere": (weight_grad_elsewhere(), {"a": 10 + 4, "b": 3 + 4 + 2}),
    # a: state 10, buffers 2 x 1, both stashes until W, weight stash 1. b: weights 3, buffers 2 x 2, stash 2.
    "I elsewhere": (input_grad_elsewhere(), {"a": 10 + 2 + 4 + 1, "b": 3 + 4 + 2}),
    # a: state 10, buffers of gradient and weight stash 2 x (1 + 1), stash 2, of which 1 stays for W beside the other 1.
    # b: weights 1, buffers of stash and gradient 2 x (1 + 1), half a stash. c: buffers 2 x 2.
    "halves": (halves(), {"a": 10 + 4 + 2, "b": 1 + 4 + 1, "c": 4}),
    # a: stash 3 while F runs. b: weights 2, buffers 2 x 3, stash 3. c: gradient 2, buffers 2 x 1, weight stash 1.
    "both elsewhere": (both_elsewhere(), {"a": 3, "b": 2 + 6 + 3, "c": 2 + 2 + 1}),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str):
    """Tests that the peak of every device is the one worked out by hand."""
    (problem, plan), peaks = MEMORY[name]
    assert play(problem, plan).peak_bytes == peaks
    assert {d: use.peak_bytes for d, use in Reading(problem, plan).memory.items()} == peaks


def test_memory_is_limited_elsewhere_too():
    """Tests that a device that only helps must not exceed its memory, and that the action at fault is named."""
    problem, plan = input_grad_elsewhere()
    problem = with_memory(problem, {"b": 8})
    (violation,) = verify(problem, with_reference(problem, plan)).violations
    assert violation.message == "Device b holds up to 9 bytes, above its 8, first during 0I0."


def test_memory_without_buffers_counts_what_is_in_use():
    """Tests that without receive buffers a device still holds the stash while its I runs."""
    problem, plan = input_grad_elsewhere()
    problem = replace(problem, options=replace(problem.options, receive_buffers=0))
    assert play(problem, with_reference(problem, plan)).peak_bytes == {"a": 10 + 4 + 1, "b": 3 + 2}


# Everything else that reads plans.


def test_deadlocks_between_parts_are_found():
    """Tests that a W that stands before the F of another stage that its own I elsewhere waits for is a cycle."""
    problem, plan = input_grad_elsewhere()
    words = {"a": "0W0 0F0 0F1 0W1", "b": "0I0 0I1"}
    (violation,) = verify(problem, make_plan(problem, list(plan.stages), words)).violations
    assert violation.message == (
        "The schedule deadlocks: 0W0 on a, which waits for 0I0 on b, which waits for 0F0 on a, "
        "which waits for 0W0 on a."
    )
    with pytest.raises(PlanError, match="deadlocks"):
        simulate(problem, make_plan(problem, list(plan.stages), words))


def test_actions_on_the_wrong_device_are_not_played():
    """Tests that the simulator refuses an I where the stage has only F and W."""
    problem, plan = input_grad_elsewhere()
    with pytest.raises(PlanError, match="a cannot run 0I0: of stage 0 it runs only FW"):
        simulate(problem, make_plan(problem, list(plan.stages), {"a": "0F0 0I0 0F1 0W0 0W1", "b": "0I0 0I1"}))


def test_the_document_names_shares_only_where_they_are():
    """Tests that this is how shares are written, and that other stages do not mention them."""
    _, plan = halves()
    assert plan_to_plain(plan)["stages"] == [
        {
            "layers": ["x"],
            "replicas": [["a"]],
            "recompute": False,
            "input_grad_replicas": [{"group": ["a"], "share": [1, 2]}, {"group": ["b"], "share": [1, 2]}],
        },
        {"layers": ["y"], "replicas": [["c"]], "recompute": False},
    ]


@pytest.mark.parametrize("share", ["[1, 2, 3]", "[1]", "[1, 0]", "[-1, 2]"])
def test_broken_shares_are_refused(share: str):
    """Tests that a share that is not two positive integers is refused with its path."""
    _, plan = halves()
    text = render_plan(plan).replace('"share": [1, 2]', f'"share": {share}')
    with pytest.raises(ValueError, match=r"stages\[0\].input_grad_replicas\[0\].share = .* is not two positive"):
        parse_plan(text)


def test_torch_cannot_run_them():
    """Tests that the export to torch says which stage it cannot express, and what to plan with."""
    problem, plan = halves()
    with pytest.raises(ValueError, match=r"stage 0 places its I or W on other devices.*split_placement = false"):
        render_torch_table(problem, plan)


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
