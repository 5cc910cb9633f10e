"""What takes microbatches for equal refuses a question that lists them, with the count and a remedy."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from api.failures import InputError
from api.inputs import make_problem as make_problem_of_workload
from planner.batch_problem import workload_of_question
from planner.export.deepspeed import render_deepspeed
from planner.export.megatron import make_megatron_job
from planner.export.torch_table import render_torch_table
from planner.export.torchtitan import make_torchtitan_files
from planner.export.zero_bubble import render_zero_bubble
from planner.fidelity.attribution import Comparison
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.diagnosis import diagnose
from planner.replanning.observations import Observations
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.what_if.change import Change, apply_change
from tests.planner.builders import make_plan
from tests.planner.judge.test_microbatches import listed

EQUAL = "microbatches lists 2 sizes, but {} assumes equal ones; plan with num_microbatches instead (-m N)"
EXPORT = "problem.microbatches lists 2 sizes, but {} supports equal microbatches only; plan with num_microbatches"
REFUSALS: dict[str, Callable[[Problem, Plan], object]] = {
    EQUAL.format("an explanation"): lambda problem, plan: explain(problem, plan, timeline=simulate(problem, plan)),
    EQUAL.format("a change"): lambda problem, plan: apply_change(problem, Change(devices=1)),
    EQUAL.format("a comparison"): lambda problem, plan: Comparison(
        problem, plan, timeline=simulate(problem, plan), iterations=[]
    ),
    EQUAL.format("a diagnosis"): lambda problem, plan: diagnose(problem, plan, seen=Observations(durations_ns={})),
    EQUAL.format("this command"): lambda problem, plan: make_problem_of_workload(workload_of_question(problem)),
    EQUAL.format("torch's runtime"): lambda problem, plan: render_torch_table(problem, plan),
    EXPORT.format("DeepSpeed"): lambda problem, plan: render_deepspeed(problem, plan),
    EXPORT.format("Megatron-LM"): lambda problem, plan: make_megatron_job(problem, plan),
    EXPORT.format("zero-bubble's runtime"): lambda problem, plan: render_zero_bubble(problem, plan),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_is_for_equal_microbatches_says_so(message: str):
    """Tests that every reader of plans that knows one size only refuses a list, naming itself and what to do."""
    problem = listed(1, 3)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"})
    with pytest.raises((ValueError, InputError), match=re.escape(message)):
        REFUSALS[message](problem, plan)
    alike = replace(problem, microbatches=None)
    render_torch_table(alike, replace(plan, problem=alike.reference()))


def test_torchtitan_refuses_what_torch_refuses():
    """Tests that torchtitan's files, which hold torch's table, are refused with it."""
    problem = listed(1, 3)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"})
    with pytest.raises(ValueError, match="assumes equal ones"):
        make_torchtitan_files(problem, plan)
