"""Microbatches that differ, cut or dealt whole: three readings of the contract, documents and refusals."""

import json
from dataclasses import replace
from random import Random

import pytest

from planner.batch_problem import problem_answered, question_of_workload, workload_of_question
from planner.document import parse_plan, render_plan
from planner.errors import PlanError
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.load import parse_workload
from profiles.workload import Workload, dump_workload
from tests.long_runs import shortened
from tests.planner.builders import draw, make_layer, make_link, make_plan, make_problem, picture
from tests.planner.judged import judged
from tests.planner.listed_cases import random_listed_case, random_listed_problem
from tests.strategies import random_plan, random_problem, with_memory, with_reference

CASES = shortened(40, whole=1500)


def listed(*sizes: int, **fields: object) -> Problem:
    """Layers x and y, a nanosecond per sample and action on every device, for microbatches of these sizes."""
    layers = [make_layer(name, stash_bytes=2, weight_stash_bytes=1, state_bytes=10) for name in "xy"]
    problem = make_problem(
        layers,
        list(map(make_link, ["a b", "b c", "c d", "d a"])),
        num_microbatches=len(sizes),
        microbatch_size=1,
        **fields,
    )
    return replace(problem, microbatches=sizes)


def dealt_in_two(problem: Problem) -> Plan:
    """Microbatches 2 and 0 on a and b, 1 on c and d."""
    words = {"a": "0F2 0F0 0B2 0B0", "b": "1F2 1B2 1F0 1B0", "c": "0F1 0B1", "d": "1F1 1B1"}
    return replace(make_plan(problem, ["x @ a | c", "y @ b | d"], words), dealing=((2, 0), (1,)))


def test_each_takes_the_time_of_its_size():
    """Tests that without a dealing, too, F, I and W of a microbatch take as long as it has samples."""
    problem = listed(1, 3)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F1 0F0 0B1 0I0 0W0", "b": "1F1 1B1 1F0 1I0 1W0"})
    assert verify(problem, plan).passed
    assert draw(problem, simulate(problem, plan)) == picture("""
        a |0F1-------- 0F0 .   .   .   .   .   .   .   .   0B1-------------------- 0I0 0W0
        b |.   .   .   1F1-------- 1B1-------------------- 1F0 1I0 1W0
    """)


def test_whole_microbatches_are_dealt():
    """Tests that in a dealing by hand pipelines share nothing, and each runs its microbatches at their full size."""
    problem = listed(1, 4, 2)
    plan = dealt_in_two(problem)
    timeline = simulate(problem, plan)
    assert verify(problem, plan).passed
    assert timeline.makespan_ns == max(2 + 2 + 4 + 4 + 2, 4 + 4 + 8 + 8) + 1  # a byte of gradients
    assert timeline.peak_bytes == {"a": 10 + 2 * 3, "b": 10 + 2 * 2, "c": 10 + 2 * 4, "d": 10 + 2 * 4}


def test_core_and_judge_agree():
    """Tests that core and judge find the same figures of random plans, and that the judge passes them."""
    dealt = 0
    for seed in range(CASES):
        problem, plan = random_listed_case(Random(seed))
        judged(problem, plan)
        assert verify(problem, plan).violations == (), seed
        dealt += len(plan.dealing) > 1
    assert dealt > CASES // 10


def test_equal_sizes_change_nothing():
    """Tests that a list of equal sizes gives the figures of that number of microbatches, to the nanosecond."""
    for seed in range(CASES // 2):
        rng = Random(seed)
        problem = random_problem(rng)
        plan = random_plan(rng, problem)
        size = problem.profile.microbatch_size
        if size is None:
            continue
        same = replace(problem, microbatches=(size,) * problem.num_microbatches)
        before, after = simulate(problem, plan), simulate(same, plan)
        assert (before.makespan_ns, before.span_ns, before.bubble) == (after.makespan_ns, after.span_ns, after.bubble)
        assert before.peak_bytes == after.peak_bytes
        assert tuple(before.transfers) == tuple(after.transfers)
        assert verify(same, with_reference(same, plan)).passed


def test_pipelines_of_one_size_are_their_own_plans():
    """Tests that each pipeline of a dealing ends when its plan alone would."""
    problem = listed(2, 2, 2)
    plan = dealt_in_two(problem)
    both, ends = simulate(problem, plan), []
    for number, hand in enumerate(plan.dealing):
        devices = [stage.replicas[number][0] for stage in plan.stages]
        order = {m: place for place, m in enumerate(hand)}
        alone = Plan(
            problem=plan.problem,
            stages=plan.stages_in(number),
            schedule={d: tuple(a._replace(microbatch=order[a.microbatch]) for a in plan.schedule[d]) for d in devices},
        )
        timeline = simulate(problem.at_size(2, count=len(hand)), alone)
        assert all(
            [timed[1:] for timed in both.actions[d]] == [timed[1:] for timed in timeline.actions[d]] for d in devices
        )
        ends.append(timeline.makespan_ns)
    assert both.makespan_ns == max(ends) + 1


def test_the_longest_decides_whether_it_fits():
    """Tests that memory is counted at the size of each microbatch: a device takes two short ones, not two long ones."""
    words = {"a": "0F0 0F1 0B0 0B1 0F2 0B2", "b": "1F0 1B0 1F1 1B1 1F2 1B2"}
    stages, memory = ["x @ a", "y @ b"], {"a": 10 + 2 * 4, "b": 10 + 2 * 4}
    for sizes, fits in (((2, 2, 4), True), ((2, 4, 2), False)):
        problem = with_memory(listed(*sizes), memory)
        violations = verify(problem, make_plan(problem, stages, words)).violations
        assert [each.rule for each in violations] == ([] if fits else ["memory-exceeded"])


def test_receive_buffers_are_as_large_as_the_largest():
    """Tests that receive buffers have room for the largest microbatch of a pipeline, and no other's."""
    problem = listed(1, 4, 2, edge_bytes=3, receive_buffers=2)
    peaks = simulate(problem, dealt_in_two(problem)).peak_bytes
    bare = simulate(listed(1, 4, 2, receive_buffers=0), dealt_in_two(problem)).peak_bytes
    assert {device: peaks[device] - bare[device] for device in peaks} == {"a": 12, "b": 12, "c": 24, "d": 24}


def test_documents_keep_lists_and_dealings():
    """Tests that a plan with a dealing and a workload with a list read back as they were written."""
    for seed in range(20):
        problem, plan = random_listed_case(Random(seed))
        assert parse_plan(render_plan(plan)) == plan
        workload = workload_of_question(problem)
        read = parse_workload(dump_workload(workload).encode(), source="file")
        assert read == workload
        assert question_of_workload(read, problem.options) == problem
        again = problem_answered(
            plan.problem, profile=problem.profile, cluster=problem.cluster, options=problem.options
        )
        assert again == problem
    assert "dealing" not in json.loads(render_plan(replace(plan, dealing=())))


def refusal_of(**fields: object) -> str:
    """What is said of a list of microbatches with other fields."""
    with pytest.raises(ValueError, match="; ") as caught:
        replace(listed(1, 2), **fields)
    return str(caught.value)


def test_what_cannot_be_a_list_is_refused():
    """Tests that each refusal names field, value and remedy."""
    problem = listed(1, 2)
    measured = replace(problem.profile, scaling="measured")
    assert "names size 2, but layer 'x' was measured on 'gpu' at 1 only" in refusal_of(profile=measured)
    assert "microbatch_size of 'profile' is null" in refusal_of(profile=replace(problem.profile, microbatch_size=None))
    assert "lists 3 sizes with num_microbatches = 2" in refusal_of(microbatches=(1, 2, 3))
    assert "microbatches = 0 is out of range" in refusal_of(microbatches=(0, 1))
    assert "unequal_shares = true" in refusal_of(options=Options(unequal_shares=True))
    assert "order = looped" in refusal_of(options=Options(order="looped", split_backward=False))
    profile = problem.profile
    for fields in ({"num_microbatches": 2}, {"global_batch_size": 4}):
        with pytest.raises(ValueError, match=r"microbatches lists 2 sizes, and .* keep one"):
            Workload(profile=profile, microbatches=(1, 2), **fields)
    with pytest.raises(ValueError, match="microbatches is empty"):
        Workload(profile=profile, microbatches=())
    with pytest.raises(ValueError, match="microbatches = 0 is out of range"):
        Workload(profile=profile, microbatches=(0, 1))


def test_what_is_no_dealing_is_not_played():
    """Tests that the core refuses a dealing that leaves a microbatch out, or a stage that has no replica for it."""
    problem = listed(1, 4, 2)
    plan = dealt_in_two(problem)
    for wrong in (
        replace(plan, dealing=((2,), (1,))),
        replace(plan, dealing=((2, 0), (1,), ())),
        replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=(("b",),)))),
    ):
        with pytest.raises(PlanError, match=r"dealing|pipelines"):
            simulate(problem, wrong)
    with pytest.raises(PlanError, match="cannot run"):
        simulate(problem, replace(plan, dealing=((2, 1), (0,))))


def test_costs_come_from_the_size():
    """Tests that a problem at one of its sizes has the profile of that size, and as many microbatches as asked."""
    problem = random_listed_problem(Random(3))
    for size in problem.sizes:
        assert problem.at_size(size).profile.microbatch_size == size
        assert problem.at_size(size, count=7).num_microbatches == 7
