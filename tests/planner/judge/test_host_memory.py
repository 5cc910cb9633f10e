"""Stashes on hosts as the judge reads them: tests of planner/judge/host_memory.py."""

from dataclasses import replace
from random import Random

from planner.document import parse_plan, render_plan
from planner.evidence.certificate import schedule_bound
from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.judged import judged
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.planner.offloads import chain, random_host_links, random_offloads
from tests.strategies import random_plan, random_problem, with_reference


def random_case(rng: Random) -> tuple[Problem, Plan]:
    """Any stages, replicas, widths, orders, recomputation and host links."""
    problem = random_problem(rng)
    if rng.random() < 0.3:
        problem = with_kinds(rng, problem)
    options = replace(problem.options, recompute=True, recompute_microbatches=True, split_placement=False)
    problem = random_host_links(rng, replace(problem, options=options))
    plan = random_mapped_plan(rng, problem) if options.recompute_layers else random_plan(rng, problem)
    return problem, with_reference(problem, random_offloads(rng, plan, count=problem.num_microbatches))


def test_core_and_judge_agree():
    """Tests that both read random plans alike, no bound is above a valid one, and documents and explanations hold."""
    valid = 0
    for seed in range(shortened(40, whole=2000)):
        problem, plan = random_case(Random(seed))
        timeline = simulate(problem, plan)
        judged(problem, plan, timeline=timeline)
        assert parse_plan(render_plan(plan)) == plan
        lists = [(len(stage.offload), len(group)) for stage in plan.stages for group in stage.replicas]
        assert len(timeline.offloads) == 2 * sum(count * width for count, width in lists)
        found = explain(problem, plan, timeline=timeline)
        assert {device.total_ns for device in found.devices} == {timeline.makespan_ns}
        if verify(problem, plan).passed:
            valid += 1
            assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= timeline.makespan_ns
    assert valid


def test_a_forged_stash_is_found():
    """Tests that the judge names a stash that is ready, starts or ends at another time, is missing or comes twice."""
    problem, plan = chain("0 0F2 0B0", "")
    timeline = simulate(problem, plan)
    first, second = timeline.offloads
    for forged, message in (
        ((first._replace(ready_ns=9), second), "is not ready at 10 ns to travel out"),
        ((first._replace(end_ns=21), second), "does not travel for 10 ns"),
        ((first, second._replace(start_ns=31, end_ns=41)), "ready at 30 ns, starts at 31 ns"),
        ((first,), "is not ready at 30 ns to travel back"),
        ((first, second, second), "moves a stash too often"),
    ):
        found = check_times(Reading(problem, plan), replace(timeline, offloads=forged)).inconsistencies
        assert any(message in each for each in found), found
