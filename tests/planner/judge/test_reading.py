"""One plan read by all pages of the contract: tests of planner/judge/reading.py."""

from collections import Counter
from dataclasses import replace

import pytest

from planner.actions import parse_action
from planner.evidence.certificate import make_bound
from planner.judge.reading import Reading
from planner.layout.costs import CostModel
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.builders import make_layer, make_plan, make_problem
from tests.planner.judge.corpus import corpus
from tests.planner.judged import judged


def test_memory_use_names_the_first_action_over():
    """Tests that peak and culprit depend on the order of actions alone."""
    layer = make_layer("x", state_bytes=100, stash_bytes=10)
    problem = make_problem([layer], [], more_devices="a", num_microbatches=2, memory_bytes=115)
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0F1 0B0 0B1"})
    use = Reading(problem, plan).memory["a"]
    assert use == (120, parse_action("0F1"))
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0B0 0F1 0B1"})
    assert Reading(problem, plan).memory["a"] == (110, None)


@pytest.mark.parametrize(("keeps", "peak"), [(False, 100 + 10 + 4 + 9), (True, 100 + 10 + 4 + 9 + 9)])
def test_kept_workspace_adds_up(keeps: bool, peak: int):
    """Tests that two I before their W hold two workspaces if they keep them, and one if they do not.

    While the second I runs: state, its stash, what the first I keeps, and its own workspace.
    """
    layer = make_layer("x", state_bytes=100, stash_bytes=10, weight_stash_bytes=4, workspace_bytes=9)
    problem = make_problem([layer], [], more_devices="a", num_microbatches=2, keep_workspace=keeps)
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0I0 0F1 0I1 0W0 0W1"})
    assert Reading(problem, plan).memory["a"].peak_bytes == peak


def test_bytes_beyond_64_bits_are_exact():
    """Tests that the peak of a device that holds eight thousand microbatches of a pebibyte is not wrapped around."""
    problem = make_problem(
        [make_layer("x", stash_bytes=2**50)], [], more_devices="a", num_microbatches=2**13, memory_bytes=2**50
    )
    order = " ".join([f"0F{m}" for m in range(2**13)] + [f"0B{m}" for m in range(2**13)])
    plan = make_plan(problem, ["x @ a"], {"a": order})
    assert Reading(problem, plan).memory["a"].peak_bytes == 2**63


def test_core_and_judge_agree_where_reductions_occupy_devices():
    """Tests that every plan takes as long by both, and longer where one reduces several stages."""
    longer = 0
    for number, (problem, plan) in enumerate(corpus()):
        cluster = replace(problem.cluster, collective_occupancy=(350, 1000)[number % 2])
        occupied = replace(problem, cluster=cluster)
        slower = replace(plan, problem=occupied.reference())
        timeline, plain = simulate(occupied, slower), simulate(problem, plan)
        judged(occupied, slower, timeline=timeline)
        assert verify(occupied, slower).violations == ()
        held = Counter(device for stage in plan.stages for group in stage.replicas for device in group)
        reduced = {timed.stage for timed in plain.synchronisations}
        assert timeline.makespan_ns >= plain.makespan_ns
        if number < 12:
            assert make_bound(occupied, CostModel(occupied)).value_ns <= plain.makespan_ns
        if max(held.values()) == 1 or not reduced:
            assert timeline.makespan_ns == plain.makespan_ns
        longer += timeline.makespan_ns > plain.makespan_ns
    assert longer > 5
