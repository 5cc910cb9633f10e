"""Tests of api/jobs/request.py."""

import time
from dataclasses import fields, replace
from typing import Any

import pytest

from api.jobs.request import PlanRequest, read_request, require_labels
from api.jobs.workers.solver_handle import Child, ProcessLimits
from planner.batch_problem import question_of_workload
from planner.problem import Options
from planner.progress import Limits
from profiles.documents.validation import validate
from profiles.load import load_workload
from tests.api.jobs.workers.test_pool import large_problem


@pytest.mark.usefixtures("_real_solvers")
def test_a_stop_is_heard_while_solvers_load():
    """Tests that a stop that comes before a fresh process has begun with its order is not forgotten."""
    request = PlanRequest(problem=large_problem(), limits=Limits(time_limit_s=600, patience_s=600, threads=1))
    child, until = Child(ProcessLimits()), time.monotonic() + 120
    child.order(op="solve", request=request.render(), start=None)
    child.ask_to_stop()
    answer = None
    while answer is None or answer["event"] == "progress":
        assert time.monotonic() < until
        answer = child.answer(0.1)
    child.kill()
    assert (answer["event"], answer["stopped_by"]) == ("done", "user")


OTHERWISE: dict[str, Any] = {
    "time_limit_s": 7.0,
    "gap": 0.5,
    "seed": 1,
    "max_rounds": 4,
    "patience": 2,
    "patience_s": 5.0,
    "threads": 3,
    "method": "search",
    "solver": "PULP_CBC_CMD",
}
"""For every limit another value than its default, or than three rounds."""


def test_every_limit_is_part_of_the_key_unless_it_only_says_how_soon():
    """Tests that no request gets the answer of one that was searched otherwise, and time and threads do not matter."""
    problem, plain = large_problem(), Limits(max_rounds=3, method="ilp")
    key = PlanRequest(problem=problem, limits=plain).request_key
    others = {each.name: replace(plain, **{each.name: OTHERWISE[each.name]}) for each in fields(Limits)}
    same = {name for name, limits in others.items() if PlanRequest(problem=problem, limits=limits).request_key == key}
    assert same == {"time_limit_s", "threads"}


def test_seconds_of_patience_end_a_search_anywhere():
    """Tests that a limit of rounds makes no promise where the clock may end the search before it."""
    limits = Limits(max_rounds=3, patience_s=5.0)
    assert PlanRequest(problem=large_problem(), limits=replace(limits, patience_s=None)).is_deterministic
    assert not PlanRequest(problem=large_problem(), limits=limits).is_deterministic


def test_every_part_of_a_question_is_part_of_the_key():
    """Tests that questions which differ in anything that their documents state have answers of their own."""
    workload = load_workload("demo:gpt2-two-processes")
    size = workload.profile.microbatch_size or 1
    asked = [workload.cut_into(4), workload.cut_into(8), replace(workload.cut_into(8), options={"recompute": True})]
    asked += [workload.with_batch(8 * size, None), workload.with_batch(8 * size, (size,))]
    asked += [workload.with_list((size,) * 8)]
    questions = [question_of_workload(each, validate(Options, dict(each.options), source="test")) for each in asked]
    keys = {PlanRequest(problem=each, limits=Limits()).problem_key for each in questions}
    assert len(keys) == len(asked)
    assert read_request(PlanRequest(problem=questions[3], limits=Limits()).render()).problem_key in keys


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"project": "a b"}, r'^submission: project: "a b" is not a name; use ASCII letters'),
        ({"tags": ("ok", "日本")}, r"^submission: tags: .* is not a name; use ASCII letters"),
        ({"tags": ("",)}, r'^submission: tags: "" is not a name'),
        ({"tags": ("x",) * 17}, "^submission: tags: are more than 16; leave some out"),
    ],
)
def test_labels_are_refused_with_their_text(labels: dict[str, Any], told: str):
    """Tests that a project or tag that is no name is shown, in ASCII."""
    with pytest.raises(ValueError, match=told):
        require_labels(**{"project": "", "tags": ()} | labels)
