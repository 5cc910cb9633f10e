"""Degrees with names in a plan: planned, written, read, judged and exported."""

import json
from dataclasses import replace

import pytest

from planner.document import parse_plan, render_plan
from planner.judge.rules import options
from planner.planning import Limits
from planner.problem import Problem
from planner.verify import verify
from profiles.degrees import Degrees
from tests.planner.export.test_stated_assumptions import grouped, naming
from tests.planner.hasty import make_plan
from tests.planner.judge.broken_plans import of_module, require_alone

CONTEXT = (("context", 2),)


def wide(*degrees: Degrees) -> Problem:
    """Layers that exist on two devices only, which share so."""
    problem = naming(*degrees)
    layers = tuple(
        replace(layer, costs=tuple(cost for cost in layer.costs if cost.width == 2)) for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def test_a_plan_names_them():
    """Tests that every stage of a plan says what its groups share, and that the document leads back to it."""
    problem = wide(Degrees(context=2))
    plan = make_plan(problem, limits=Limits(time_limit_s=20, max_rounds=0, threads=1))
    assert {stage.degrees for stage in plan.stages} == {CONTEXT}
    text = render_plan(plan)
    assert json.loads(text)["stages"][0]["degrees"] == {"context": 2}
    assert parse_plan(text.encode()) == plan
    assert verify(problem, plan).passed


def test_without_names_nothing_is_said():
    """Tests that a profile whose widths have no names gets the plan that it always had."""
    plan = make_plan(wide(), limits=Limits(time_limit_s=20, max_rounds=0, threads=1))
    assert {stage.degrees for stage in plan.stages} == {()}
    assert '"degrees"' not in render_plan(plan)


@pytest.mark.parametrize(
    ("named", "broken"),
    [
        (CONTEXT, []),
        ((), []),
        ((("tensor", 2),), ["degrees-wrong"]),
        ((("context", 4),), ["degrees-wrong"]),
        ((("context", 2), ("expert", 3)), ["degrees-wrong"]),
        ((("pipeline", 2),), ["malformed"]),
        ((("context", "2"),), ["malformed"]),
    ],
)
def test_what_the_judge_says(named: tuple[tuple[str, int], ...], broken: list[str]):
    """Tests that a stage may name what the profile says of its width, or nothing, and nothing else."""
    problem = naming(Degrees(context=2))
    plan = grouped(problem)
    first, second = plan.stages
    found = verify(problem, replace(plan, stages=(replace(first, degrees=named), second)))
    assert [each.rule for each in found.violations] == broken


def test_what_a_document_may_name():
    """Tests that a name that is no degree is refused with those that are."""
    problem = naming(Degrees(context=2))
    plan = grouped(problem)
    text = render_plan(replace(plan, stages=(replace(plan.stages[0], degrees=CONTEXT), plan.stages[1])))
    with pytest.raises(ValueError, match="names 'rings'; give some of tensor, context, data, expert"):
        parse_plan(text.replace('"context": 2', '"rings": 2').encode())


@pytest.mark.parametrize("rule", of_module(options))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
