"""Questions about plans and configurations that come along with the request: verify, play, audit, and what if."""

import json
from asyncio import to_thread
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from fastapi import Request
from fastapi.responses import Response

from api.auditing.audit_request import AuditRequest, read_audit_request
from api.jobs.job import Job
from api.jobs.plan_forms import Form, media_of
from api.jobs.request import SOURCE, PlanRequest, Submission, check_limits, parse_tree, read_request, require_size
from api.jobs.request_fields import PlanTree, Priority, WorkloadTree
from api.service.access import Serving, Writer, service_of
from api.service.auth import Caller
from api.service.core import Service
from api.service.handlers import answers
from api.service.handlers.bodies import read_order, refusing
from api.service.handlers.plan_handlers import accepted, answer_once, enqueue, new_job
from api.service.handlers.responses import answer
from api.service.handlers.route_notes import answering, noting, router_at, sending
from api.service.http.problem_json import ServiceError, found
from api.service.http.request_body import read_body, while_connected
from planner.batch_problem import problem_for, workload_of_question
from planner.document import parse_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.what_if.change import Change, apply_change
from profiles.documents.canonical_json import canonical_json
from profiles.documents.strict_record import StrictRecord

router = router_at("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(StrictRecord):
    """The body of `POST /v1/verifications`."""

    plan: PlanTree
    """A plan document, as PlanDocument says; what it states is judged."""
    workload: WorkloadTree | None = None
    """The workload that it answers; left out: the one that it brings along."""
    certificate: bool = False
    """Also derive bound, gap and everything else that the evidence states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback(StrictRecord):
    """The body of `POST /v1/playbacks`."""

    plan: PlanTree
    """A plan document, as PlanDocument says; what it states is judged."""
    what: Form
    """What to make of it; a picture is what the page draws, as JSON."""
    workload: WorkloadTree | None = None
    """The workload that it answers; left out: the one that it brings along."""
    other: PlanTree | None = None
    """A second plan, for a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(StrictRecord):
    """The body of `POST /v1/what-if`."""

    base: str
    """A plan of this service that has succeeded."""
    change: Change
    """The difference from the plan's question."""
    limits: Limits = field(default_factory=lambda: Limits(time_limit_s=10.0))
    """When to stop."""
    priority: Priority = 0
    """Larger first, among the tenant's own jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The parts of `pipeplan audit --json` that are always there; the figures stand beside them."""

    verdict: Literal["runs", "does not fit", "does not start"]
    refusals: list[str]
    unknown: list[str]
    files: dict[str, str] = field(default_factory=dict)


@router.post("/verifications", response_model=answers.Verdict, openapi_extra=noting(body=Verification))
async def verify_plan(request: Request, caller: Writer) -> Response:
    """Check any plan against every rule."""
    _, made = await _inspect(
        request, caller, kind=Verification, more=lambda asked: {"what": "verdict", "certificate": asked.certificate}
    )
    return answer(made["verdict"])


@router.post(
    "/playbacks",
    response_class=Response,
    responses={200: sending(get_args(Form), "The request")},
    openapi_extra=noting(body=Playback),
)
async def play_plan(request: Request, caller: Writer) -> Response:
    """Simulate, explain, draw or export any plan."""

    def more(asked: Playback) -> dict[str, Any]:
        return {"what": asked.what, "other": None if asked.other is None else json.dumps(asked.other)}

    asked, made = await _inspect(request, caller, kind=Playback, more=more)
    headers = {"Content-Security-Policy": "sandbox allow-scripts"} if asked.what == "view" else {}
    return Response(made["text"].encode(), media_type=media_of(asked.what), headers=headers)


@router.post("/audits", response_model=Audit, openapi_extra=noting(body=AuditRequest))
async def audit_configuration(request: Request, service: Serving, *, caller: Writer) -> Response:
    """What another program's configuration comes to, and how far from the best it is: `pipeplan audit --json`."""
    body = await read_body(request, service.open_requests)
    tree, time_limit_s = await to_thread(_read_audit, body)
    order = {"what": "audit", "request": tree}
    seconds = time_limit_s + service.settings.inspection_s
    made = await while_connected(request, service.inspector.ask(caller.tenant, order.copy, seconds=seconds))
    return answer(made["audit"])


def _read_audit(body: bytes) -> tuple[dict[str, Any], float]:
    """What is asked, and how long a better plan is looked for; raises ServiceError 400 or 422."""
    with refusing():
        tree = parse_tree(body)
        return tree, read_audit_request(tree, source=SOURCE).time_limit_s


async def _inspect(
    request: Request, caller: Caller, *, kind: type, more: Callable[[Any], dict[str, Any]]
) -> tuple[Any, dict[str, Any]]:
    """The body, and the answer to the order that it and `more` of it amount to."""
    service = await service_of(request)
    body = await read_body(request, service.open_requests)
    bodies: list[Any] = []

    def make_order() -> dict[str, Any]:
        asked = read_order(kind, body)
        bodies.append(asked)
        return {"plan": json.dumps(asked.plan), "workload": asked.workload, **more(asked)}

    made = await while_connected(request, service.inspector.ask(caller.tenant, make_order))
    return bodies[0], made


@router.post(
    "/what-if",
    response_model=answers.Job,
    responses={202: {**answering("Accepted", Location="The plan"), "model": answers.Job}},
    openapi_extra=noting(404, 409, body=WhatIf, headers=("Prefer", "Idempotency-Key")),
)
async def ask_what_if(request: Request, service: Serving, *, caller: Writer) -> Response:
    """The same question with a change: a plan that says how far the objective moved."""
    return await answer_once(service, request, caller=caller, what="what-if", act=_ask_what_if)


async def _ask_what_if(
    service: Service, request: Request, *, caller: Caller, body: bytes, key: str | None, digest: str
) -> Response:
    order: WhatIf = await to_thread(read_order, WhatIf, body)
    base = found(await to_thread(service.store.get, order.base, tenant=caller.tenant), "/base")
    if base.state != "succeeded":
        raise ServiceError(409, "not_finished", detail="the base has no final plan yet; try again")
    plan = await to_thread(_change, service, order, base=base, asked=parse_tree(body).get("limits"))
    with refusing():
        submission = Submission(workload={}, priority=order.priority)
    new = new_job(caller, submission=submission, plan=plan)
    told = {"change": asdict(order.change), "base_objective_ns": base.incumbent_ns}
    new = replace(new, base_id=base.id, change=canonical_json(told))
    job = await enqueue(service, caller, new=new, key=key, digest=digest)
    return await accepted(service, request, caller=caller, job=job)


def _change(service: Service, order: WhatIf, *, base: Job, asked: object) -> PlanRequest:
    with refusing():
        ceilings = service.settings.ceilings
        problem = apply_change(_cut_problem(service, base), order.change)
        require_size(workload_of_question(problem), ceilings, source=SOURCE, options=problem.options)
        return PlanRequest(problem=problem, limits=check_limits(order.limits, ceilings, asked=asked))


def _cut_problem(service: Service, base: Job) -> Problem:
    """What was asked; of a global batch, with microbatches of the size that the plan decided on."""
    question = read_request(service.store.request_text(base.id)).problem
    text = None if isinstance(question, Problem) else service.store.plan_text(base.id)
    return question if isinstance(question, Problem) else problem_for(question, parse_plan(text or "", source="base"))
