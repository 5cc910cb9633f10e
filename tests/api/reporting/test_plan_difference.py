"""Two plans side by side, as a document: tests of api/reporting/plan_difference.py."""

from dataclasses import replace

import pytest

from api.doctor import make_toy_problem
from api.reporting.plan_difference import PlayedSide, compare_plans
from planner.planning import Limits, make_plan
from planner.problem import Problem
from planner.verify import verify


def side(problem: Problem) -> PlayedSide:
    """A plan of the problem, played."""
    plan = make_plan(problem, limits=Limits(time_limit_s=30.0, max_rounds=1))
    timeline = verify(problem, plan).timeline
    assert timeline is not None
    return PlayedSide(problem=problem, plan=plan, timeline=timeline)


def test_no_difference():
    """Tests that a plan does not differ from itself."""
    one = side(make_toy_problem())
    document = compare_plans(one, one)
    assert document["stages"] == document["layers"] == document["devices"] == []
    assert all(figure["moved"] in (0, None) for figure in document["figures"].values())
    assert document["profile"]["is_same"]


def test_differences_are_what_they_are():
    """Tests that the difference of a plan for more microbatches names figures, devices and where orders part."""
    before, after = side(make_toy_problem()), side(replace(make_toy_problem(), num_microbatches=9))
    document = compare_plans(before, after)
    assert document["figures"]["num_microbatches"]["after"] == 9
    assert document["figures"]["makespan_ns"]["moved"] == after.timeline.makespan_ns - before.timeline.makespan_ns
    assert document["devices"]
    for row in document["devices"]:
        words = [[str(action) for action in each.plan.schedule.get(row["device"], ())] for each in (before, after)]
        at = row["order"]["first_difference"]
        assert words[0][:at] == words[1][:at]
        assert words[0][at : at + 1] != words[1][at : at + 1]
        assert row["peak_bytes"]["moved"] in (
            None,
            (after.timeline.peak_bytes.get(row["device"], 0) - before.timeline.peak_bytes.get(row["device"], 0)),
        )


def test_plans_of_different_models_are_not_compared():
    """Tests that plans of two names, or of one name without a layer in common, are refused with both names."""
    one = side(make_toy_problem())
    profile = one.problem.profile
    renamed = {layer.name: f"other.{layer.name}" for layer in profile.layers}
    layers = tuple(replace(layer, name=renamed[layer.name]) for layer in profile.layers)
    edges = tuple(replace(e, producer=renamed[e.producer], consumer=renamed[e.consumer]) for e in profile.edges)
    others = (replace(profile, name="another"), replace(profile, layers=layers, edges=edges))
    for other, words in zip(others, ("A is of .+, B of another", "no layer is in both"), strict=True):
        after = replace(one, problem=replace(one.problem, profile=other))
        with pytest.raises(ValueError, match=words):
            compare_plans(one, after)
