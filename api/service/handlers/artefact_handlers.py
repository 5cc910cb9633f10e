"""What is made of a finished plan: the document itself, pictures, traces, reports, other programs' forms."""

from typing import Annotated, Any, get_args

from fastapi import Query, Request
from fastapi.responses import HTMLResponse, Response

from api.jobs.job import Job
from api.jobs.plan_forms import Export, media_of
from api.jobs.request_fields import PlanId
from api.service.access import ReadableJob, Reader, Serving, plan_text, read_other, require_plan, workload_of
from api.service.core import Service
from api.service.handlers.responses import IMMUTABLE, is_known, not_modified
from api.service.handlers.route_notes import NOT_MODIFIED, answering, noting, router_at, sending
from api.service.http.problem_json import not_found
from planner.release import RELEASE
from profiles.documents.schema_rules import Stated

router = router_at("/v1/plans")

_REFUSES = noting(409)
Second = Annotated[
    str | None,
    Stated({"type": "string", "pattern": "^[0-9a-f]{32}$"}),
    Query(description="the id of a second plan of this service"),
]
"""The plan that is looked at beside the one of the path."""
_Other = Annotated[PlanId, Query(description="the id of the other plan")]
_Form = Annotated[str, Stated({"enum": sorted(get_args(Export))})]


@router.get(
    "/{plan_id}/export/{form}",
    response_class=Response,
    responses={200: sending(get_args(Export), "The export"), **NOT_MODIFIED},
    openapi_extra=_REFUSES,
)
async def export_plan(request: Request, service: Serving, *, job: ReadableJob, form: _Form) -> Response:
    """The plan for another program."""
    if form not in get_args(Export):
        raise not_found()
    return await _fetch(request, service, job=job, what=form)


_PLAN = answering("The plan document", schema="PlanDocument")


@router.get("/{plan_id}/plan", responses={200: _PLAN, **NOT_MODIFIED}, openapi_extra=_REFUSES)
async def get_plan_document(request: Request, service: Serving, *, job: ReadableJob) -> Response:
    """The plan document, byte for byte as the command line writes it."""
    return await _fetch(request, service, job=job, what="plan")


@router.get("/{plan_id}/trace", responses=NOT_MODIFIED, openapi_extra=_REFUSES)
async def get_trace(request: Request, service: Serving, *, job: ReadableJob) -> Response:
    """A Chrome trace."""
    return await _fetch(request, service, job=job, what="trace")


@router.get("/{plan_id}/view", response_class=HTMLResponse, responses=NOT_MODIFIED, openapi_extra=_REFUSES)
async def get_view(
    request: Request, service: Serving, *, caller: Reader, job: ReadableJob, against: Second = None
) -> Response:
    """The picture, with `?against=ID` a second plan below it."""
    require_plan(job)
    other = await read_other(service, caller, other_id=against)
    return await _fetch(request, service, job=job, what="view", other=other)


@router.get("/{plan_id}/difference", responses=NOT_MODIFIED, openapi_extra=_REFUSES)
async def get_difference(
    request: Request, service: Serving, *, caller: Reader, job: ReadableJob, to: _Other
) -> Response:
    """What is different in the plan of `?to=ID`: stages, devices, order, memory, time, bound."""
    require_plan(job)
    other = await read_other(service, caller, other_id=to)
    return await _fetch(request, service, job=job, what="difference", other=other)


@router.get("/{plan_id}/report", responses=NOT_MODIFIED, openapi_extra=_REFUSES)
async def get_report(request: Request, service: Serving, *, job: ReadableJob) -> Response:
    """Stages, devices, memory, baselines and where the time goes."""
    return await _fetch(request, service, job=job, what="report")


async def _fetch(request: Request, service: Service, *, job: Job, what: str, other: Job | None = None) -> Response:
    require_plan(job)
    name = what if other is None else f"{what}-{(other.plan_sha256 or '')[:16]}"
    tag = f'"{job.plan_sha256}-{name}{"" if what == "plan" else "-" + RELEASE}"'
    if is_known(request, tag):
        return not_modified(tag, cache_control=IMMUTABLE)
    headers = {"ETag": tag, "Cache-Control": IMMUTABLE}
    if what == "plan":
        return Response((await plan_text(service, job)).encode(), headers=headers, media_type="application/json")
    text = await service.gallery.get(job.id, name, make=lambda: _draw(service, job, what=what, other=other))
    if what == "view":
        headers["Content-Security-Policy"] = "sandbox allow-scripts; frame-ancestors 'self'"
    return Response(text.encode(), headers=headers, media_type=media_of(what))


async def _draw(service: Service, job: Job, *, what: str, other: Job | None) -> str:
    order: dict[str, Any] = {"what": what, "plan": await plan_text(service, job)}
    if other is not None:
        order["other"] = await plan_text(service, other)
        order["other_workload"] = await workload_of(service, other) if what == "difference" else None
    return str((await inspected(service, job, **order))["text"])


async def inspected(service: Service, job: Job, **order: Any) -> dict[str, Any]:
    """The answer to an order about a plan of the job's question."""
    workload = await workload_of(service, job)
    return await service.inspector.ask(job.tenant, lambda: {"workload": workload, **order})
