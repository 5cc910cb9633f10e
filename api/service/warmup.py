"""Everything that is otherwise built by the first request, built once, by one thread, before the first request.

Validators, schemas and the interface's document are made when they are first needed; first requests come at the same
time, and some of what makes them is not safe to run in several threads at once.
"""

import json
from typing import Any

from api.jobs.request import SOURCE, Ceilings, PlanRequest, parse_tree, question_of, read_request, read_submission
from api.service.handlers.notice_handlers import Notice
from api.service.handlers.picture_handlers import RangeOrder
from api.service.handlers.plan_handlers import Filing
from api.service.handlers.playback import Playback, Verification, WhatIf
from api.service.handlers.route_notes import example_submission
from api.service.handlers.webhook_handlers import NewWebhook
from api.service.http.problem_json import complaints_of
from api.service.openapi import allowed_methods, make_document
from planner.document import parse_plan
from planner.problem import Problem
from planner.what_if.change import Change, apply_change
from profiles.documents.validation import validate
from profiles.load import workload_of


def build_everything() -> None:
    """Read an example of every body, and one of each with a mistake in it, whatever this service allows."""
    ceilings = Ceilings()
    make_document()
    allowed_methods("/v1/plans")
    example = example_submission()
    _, plan = read_submission(json.dumps(example).encode(), ceilings)
    problem = read_request(plan.render()).problem
    apply_change(problem if isinstance(problem, Problem) else problem.candidates[0], Change(devices=1))
    _ = (plan.problem_key, plan.request_key, PlanRequest(problem=problem, limits=plan.limits).render())
    question_of(workload_of(example["workload"], source=SOURCE), source=SOURCE, ceilings=ceilings)
    for kind, body in _bodies():
        validate(kind, parse_tree(json.dumps(body).encode()), source=SOURCE)
        _refuse(lambda kind=kind, body=body: validate(kind, {**body, "surprise": 1}, source=SOURCE))
    _refuse(lambda: read_submission(json.dumps({**example, "limits": {"gap": 2}}).encode(), ceilings))
    _refuse(lambda: read_submission(b"{", ceilings))
    _refuse(lambda: parse_plan("{}", source=SOURCE))


def _bodies() -> tuple[tuple[type, dict[str, Any]], ...]:
    return (
        (Verification, {"plan": {}}),
        (NewWebhook, {"url": "http://127.0.0.1/"}),
        (Notice, {"event": "drifted", "detail": {"factor": 1.5}}),
        (Filing, {"project": "a", "tags": ["b"]}),
        (Playback, {"plan": {}, "what": "view"}),
        (RangeOrder, {"base": "", "changes": [{"devices": 1}]}),
        (WhatIf, {"base": "", "change": {"devices": 1}, "limits": {"gap": 0.1}}),
    )


def _refuse(act: Any) -> None:
    """A refusal is put into words, too."""
    try:
        act()
    except ValueError as error:
        complaints_of(error)
