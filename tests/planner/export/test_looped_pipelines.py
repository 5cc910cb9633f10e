"""Tests of planner/export/looped_pipelines.py."""

from dataclasses import replace

from planner.actions import Action
from planner.document import parse_plan, render_plan
from planner.evidence.check_evidence import rederive
from planner.export.looped_pipelines import as_looped, first_difference
from planner.export.targets import restrict
from planner.planning import Limits
from planner.problem import Options
from planner.verify import verify
from tests.planner.bounds.loop.test_loop_bound import MEGATRON
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan


def test_a_plan_carries_its_order():
    """Tests that a plan's document says that its stages stand in a loop, and its bound is derived from it alone."""
    times = [(10, 10, 10)] * 6 + [(26, 25, 25), (10, 10, 10)]
    options = replace(restrict(Options(max_stages_per_device=3), MEGATRON), max_replicas=1, receive_buffers=0)
    problem = make_chain(times, num_devices=3, num_microbatches=12, options=options)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.schedule == as_looped(problem, plan).schedule
    read = parse_plan(render_plan(plan))
    assert read.problem.options["order"] == "looped"
    found = rederive(problem, read)
    assert found.passed
    assert (found.bound_kind, found.lower_bound_ns) == ("cuts", plan.evidence.lower_bound_ns)
    options = {name: value for name, value in plan.problem.options.items() if name != "order"}
    older = replace(plan, problem=replace(plan.problem, options=options))
    free = replace(problem, options=replace(problem.options, order="any"))
    assert not [each for each in verify(free, older).violations if each.rule == "options-differ"]
    assert [each.rule for each in verify(problem, older).violations] == ["options-differ"]


def test_the_first_difference_may_be_an_end():
    """Tests that where one order goes on and the other has ended, it is said that nothing is there."""
    forward, backward = Action("F", 0, 0), Action("B", 0, 0)
    assert first_difference([forward, backward], [forward]) == (1, "0B0", "nothing")
    assert first_difference([forward], [forward, backward]) == (1, "nothing", "0B0")
    assert first_difference([backward], [forward, backward]) == (0, "0B0", "0F0")
