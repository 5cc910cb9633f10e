"""Timelines drawn by hand, rule by rule of MODEL.md sections 1 to 4, and properties of all timelines."""

from dataclasses import replace

import pytest
from hypothesis import given

from planner.errors import PlanError
from planner.plan import Plan
from planner.problem import Problem
from planner.replay import replay
from planner.simulate import MemoryPoint, Timeline, simulate
from profiles.model_profile import WidthBytes
from tests.planner.builders import draw, make_edge, make_layer, make_link, make_plan, make_problem, make_stage, picture
from tests.planner.oracle import evaluate
from tests.strategies import cases


def play(problem: Problem, plan: Plan) -> Timeline:
    """The timeline, after the second and the third evaluation have agreed with it."""
    timeline = simulate(problem, plan)
    second, third = replay(problem, plan, timeline=timeline), evaluate(problem, plan)
    assert second.inconsistencies == ()
    assert (timeline.makespan_ns, timeline.span_ns) == (second.makespan_ns, second.span_ns)
    assert (timeline.makespan_ns, timeline.span_ns) == (third.makespan_ns, third.span_ns)
    assert timeline.peak_bytes == second.peak_bytes == third.peak_bytes
    assert timeline.bubble == pytest.approx(third.bubble)
    assert timeline.bubble == pytest.approx(second.bubble)
    return timeline


def two_stages(**fields: object) -> Problem:
    """Layers x and y for devices a and b with one link between them; everything takes one nanosecond."""
    given_fields = {"latency": 0, "duplex": True, "bandwidth": 10**9} | fields
    link = make_link("a b", **{key: given_fields.pop(key) for key in ("latency", "duplex", "bandwidth")})
    return make_problem([make_layer("x"), make_layer("y")], [link], **given_fields)


ONE_F_ONE_B = {
    "a": "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
    "b": "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2",
}


def test_order_is_kept_and_nothing_waits_longer_than_it_must():
    """Tests that every action runs in the plan's order, as early as its inputs and its device allow."""
    problem = two_stages(num_microbatches=3)
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], ONE_F_ONE_B))
    assert draw(problem, timeline) == picture("""
        a |0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 .   0I2 0W2
        b |.   1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2
    """)
    assert (timeline.makespan_ns, timeline.span_ns) == (11, 11)
    assert timeline.bubble == pytest.approx(1 - 18 / 22)


def test_fused_backward_takes_its_own_time_and_sends_at_its_end():
    """Tests that B takes backward_ns, not I + W, and that the gradient leaves at its end."""
    problem = make_problem([make_layer("x", (1, 1, 1)), make_layer("y", (1, 2, 2, 3))], [make_link("a b")])
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0I0 0W0", "b": "1F0 1B0"}))
    assert draw(problem, timeline) == picture("""
        a |0F0 .   .   .   .   0I0 0W0
        b |.   1F0 1B0--------
    """)


def test_transfers_take_latency_and_bytes_over_bandwidth_beside_the_work():
    """Tests that a transfer of 2 bytes takes 1 ns latency + 2 ns, and that devices work meanwhile."""
    problem = two_stages(num_microbatches=2, edge_bytes=2, latency=1)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1I0 1F1 1I1 1W0 1W1"})
    assert draw(problem, play(problem, plan)) == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   .   0B0---- 0B1----
        b   |.   .   .   .   1F0 1I0 .   1F1 1I1 1W0 1W1
        a>b |.   0f0-------- 0f1--------
        b>a |.   .   .   .   .   .   1b0-------- 1b1--------
    """)


def test_a_part_of_a_nanosecond_counts_whole():
    """Tests that durations are rounded up: 1 byte at 3 bytes per 10 ns takes 4 ns."""
    problem = two_stages(edge_bytes=1, bandwidth=3 * 10**8)
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"}))
    assert [sent.end_ns - sent.start_ns for sent in timeline.transfers] == [4, 4]


def test_a_link_serves_in_order_of_readiness():
    """Tests that two transfers never share a link: here both directions of one that is not duplex."""
    problem = two_stages(num_microbatches=2, edge_bytes=2, duplex=False)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"})
    assert draw(problem, play(problem, plan)) == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   0B0---- 0B1----
        b   |.   .   .   1F0 1B0---- 1F1 1B1----
        a-b |.   0f0---- 0f1---- .   1b0---- 1b1----
    """).replace(
        "0B0---- 0B1----\nb", "0B0---- .   0B1----\nb"
    ).replace("1b0---- 1b1----", "1b0---- .   1b1----").replace(".   1b0", "1b0")


