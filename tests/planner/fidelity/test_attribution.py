"""The difference between prediction and run, in parts that add up."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.fidelity.attribution import PARTS, Comparison
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.drawing import draw_schedule
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_split
from tests.planner.fidelity.runs import compare, disturbed, run
from tests.strategies import cases


def one_pair(**fields: object) -> tuple[Problem, Plan]:
    """Two stages on two devices, two microbatches, a transfer takes 2 ns."""
    layers = [make_layer("l0", (4, 4, 4)), make_layer("l1", (4, 4, 4))]
    problem = make_problem(layers, [make_link("a b", latency=2)], num_microbatches=2, **fields)
    words = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"}
    return problem, make_plan(problem, ["l0 @ a", "l1 @ b"], words)


def parts_of(comparison: Comparison, **changes: object) -> dict[str, int]:
    """The parts other than 0 of a run in which `changes` replace what was predicted."""
    measured = run(comparison, replace(comparison.predicted(), **changes))
    mended = Comparison(comparison.problem, comparison.plan, timeline=comparison.timeline, iterations=(measured,))
    attribution = mended.attribute(measured)
    assert sum(part for _, part in attribution.parts) == attribution.measured_ns - attribution.predicted_ns
    return {name: part for name, part in attribution.parts if part}


@given(cases(), st.integers(0, 2**32))
def test_the_parts_add_up(case: tuple[Problem, Plan], seed: int):
    """Tests that on any plan the replay begins with the makespan, ends with the measured time, and nothing is lost."""
    problem, plan = case
    assume(all(len(group) == 1 for stage in plan.stages for group in stage.groups))
    comparison, rng = compare(problem, plan), Random(seed)
    assert comparison.replay(comparison.predicted()) == comparison.timeline.makespan_ns
    assume(any(word[0][:2] == ("F", 0) for word in comparison.device_orders.values()))
    first = run(comparison, disturbed(comparison.predicted(), rng))
    second = run(comparison, disturbed(comparison.predicted(), rng), number=1)
    comparison = compare(problem, plan, first, second)
    for iteration in (first, second):
        attribution = comparison.attribute(iteration)
        assert attribution.predicted_ns == comparison.timeline.makespan_ns
        assert attribution.measured_ns == iteration.duration_ns
        assert sum(part for _, part in attribution.parts) == attribution.measured_ns - attribution.predicted_ns
        assert sum(part for _, part in attribution.kinds) == dict(attribution.parts)["compute"]
        assert tuple(name for name, _ in attribution.parts) == PARTS


def test_a_run_as_predicted_has_no_parts():
    """Tests that nothing is attributed where nothing differs."""
    assert parts_of(compare(*one_pair(optimizer_ns=3))) == {}


def test_each_cause_has_its_name():
    """Tests that what only one quantity changed is attributed to it alone."""
    comparison = compare(*one_pair(optimizer_ns=3))
    predicted = comparison.predicted()
    longer = {key: value + 2 for key, value in predicted.duration_ns.items()}
    assert set(parts_of(comparison, duration_ns=longer)) == {"compute"}
    later = {key: tuple(lag + 5 for lag in lags) for key, lags in predicted.lag_ns.items()}
    assert set(parts_of(comparison, lag_ns=later)) == {"transfer"}
    assert parts_of(comparison, overhead_ns=predicted.overhead_ns | {("a", 0): 4}) == {"launch overhead": 4}
    assert parts_of(comparison, optimizer_ns={"a": 8, "b": 3}) == {"optimizer": 5}
    assert parts_of(comparison, tail_ns={"a": 6, "b": 0}) == {"synchronisation": 6}


def test_one_late_tensor_is_waiting():
    """Tests that a lag beyond the usual one of its leg counts as waiting, not as transfer."""
    comparison = compare(*one_pair())
    predicted = comparison.predicted()
    usual = run(comparison, predicted)
    late = run(comparison, replace(predicted, lag_ns=predicted.lag_ns | {("b", 0): (12,)}), number=1)
    attribution = compare(comparison.problem, comparison.plan, usual, late, usual).attribute(late)
    assert {name: part for name, part in attribution.parts if part} == {"waiting": 10}


def test_split_placement_is_refused():
    """Tests that plans which nothing executes, and groups that wait for each other within actions, are refused."""
    problem, plan = one_pair(split_placement=True)
    split = replace(plan, stages=(make_split("l0 @ a", weight_grad="b"), plan.stages[1]))
    with pytest.raises(ValueError, match="are not executed"):
        Comparison(problem, split, timeline=compare(problem, plan).timeline, iterations=())
    wide = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=(("b", "c"),))))
    with pytest.raises(ValueError, match=r"stage 1 is on groups of 2 devices, .* compare a plan with max_width = 1"):
        Comparison(problem, wide, timeline=compare(problem, plan).timeline, iterations=())


def test_both_timelines_as_text():
    """Tests that a prediction is drawn above a run whose first backward took twice as long, as text."""
    comparison = compare(*one_pair())
    predicted = comparison.predicted()
    slow = run(comparison, replace(predicted, duration_ns=predicted.duration_ns | {("b", 1): 16}))
    drawings = [draw_schedule(t, tick_ns=2) for t in (comparison.timeline, comparison.measured_timeline(slow))]
    assert drawings == [BEFORE, AFTER]


BEFORE = """\
  |  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19
a | F0--- F1---  .  .  .  .  .  . B0---------  .  . B1---------
b |  .  .  . F0--- B0--------- F1--- B1---------
"""

AFTER = """\
  |  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
a | F0--- F1---  .  .  .  .  .  .  .  .  .  . B0---------  .  . B1---------
b |  .  .  . F0--- B0--------------------- F1--- B1---------
"""
