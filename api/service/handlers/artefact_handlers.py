"""What is made of a finished plan: the document itself, pictures, traces, reports, other programs' forms."""

from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.jobs.job import Job
from api.jobs.plan_forms import Export, media_of
from api.service.access import Reader, find, plan_text, read_other, require_plan, service_of, workload_of
from api.service.auth import Caller
from api.service.core import Service
from api.service.handlers.responses import IMMUTABLE, is_known, not_modified
from api.service.http.problem_json import Complaint, ServiceError, not_found
from planner.release import RELEASE

router = APIRouter(prefix="/v1/plans")

BESIDE = {"view": "against", "difference": "to"}
"""What is made of two plans, and the parameter that names the second one."""


@router.get("/{plan_id}/export/{form}")
async def export_plan(request: Request, caller: Reader) -> Response:
    """The plan for another program."""
    form = request.path_params["form"]
    if form not in get_args(Export):
        raise not_found()
    return await _fetch(request, caller, what=form)


@router.get("/{plan_id}/plan")
async def get_plan_document(request: Request, caller: Reader) -> Response:
    """The plan document, byte for byte as the command line writes it."""
    return await _fetch(request, caller, what="plan")


@router.get("/{plan_id}/trace")
async def get_trace(request: Request, caller: Reader) -> Response:
    """A Chrome trace."""
    return await _fetch(request, caller, what="trace")


@router.get("/{plan_id}/view")
async def get_view(request: Request, caller: Reader) -> Response:
    """The picture, with `?against=ID` a second plan below it."""
    return await _fetch(request, caller, what="view")


@router.get("/{plan_id}/difference")
async def get_difference(request: Request, caller: Reader) -> Response:
    """What is different in the plan of `?to=ID`: stages, devices, order, memory, time, bound."""
    if request.query_params.get("to") is None:
        complaint = Complaint(pointer="/to", code="missing", detail="give the id of the other plan")
        raise ServiceError(422, "invalid", errors=(complaint,))
    return await _fetch(request, caller, what="difference")


@router.get("/{plan_id}/report")
async def get_report(request: Request, caller: Reader) -> Response:
    """Stages, devices, memory, baselines and where the time goes."""
    return await _fetch(request, caller, what="report")


async def _fetch(request: Request, caller: Caller, *, what: str) -> Response:
    service = await service_of(request)
    job = await find(request, caller)
    require_plan(job)
    other = await read_other(request, caller, parameter=BESIDE[what]) if what in BESIDE else None
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
    text = await plan_text(service, job)
    beside = None if other is None else await plan_text(service, other)
    workload = await workload_of(service, job)
    order: dict[str, Any] = {"what": what, "plan": text, "workload": workload, "other": beside}
    if other is not None and what == "difference":
        order["other_workload"] = await workload_of(service, other)
    made = await service.inspector.ask(job.tenant, lambda: order)
    return str(made["text"])
