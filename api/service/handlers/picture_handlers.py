"""What the page draws: the timeline of the best plan so far, the story of a job, and ranges of what-ifs."""

import base64
import hashlib
import json
from asyncio import to_thread
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response

from api.jobs.job import Job
from api.service.access import ReadableJob, Reader, Serving, Writer, plan_text, read_other
from api.service.core import Service
from api.service.handlers import answers
from api.service.handlers.artefact_handlers import Second, inspected
from api.service.handlers.bodies import read_as
from api.service.handlers.responses import answer, is_known, not_modified
from api.service.handlers.route_notes import NOT_MODIFIED, noting, router_at
from api.service.http.problem_json import ServiceError, found, invalid
from api.service.http.request_body import read_body
from planner.release import RELEASE
from planner.what_if.change import Change, WhatIfRange
from profiles.documents.schema_rules import Stated
from profiles.documents.strict_record import StrictRecord

router = router_at("/v1")

_MOST_CHANGES = 32
"""Changes in one request for ranges."""

PRIVATE = "private, no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOrder(StrictRecord):
    """The body of `POST /v1/what-if/ranges`."""

    base: str
    """A plan of this service that has one, final or not."""
    changes: Annotated[tuple[Change, ...], Stated(maxItems=_MOST_CHANGES)]
    """At most 32, each answered on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Of each change that was asked about, in the same order."""

    ranges: list[WhatIfRange]


@router.get("/plans/{plan_id}/history", response_model=answers.History)
async def get_history(service: Serving, job: ReadableJob) -> Response:
    """All incumbents and bounds with their times, and which of the plans can still be looked at."""
    events = await to_thread(service.store.events, job.id, after=0)
    kept = set(await to_thread(service.store.incumbents, job.id))
    begin = job.started_at or job.created_at
    story = [
        {
            "seq": event.seq,
            "kind": event.kind,
            "at_s": round(max(0.0, event.at - begin), 3),
            "has_plan": event.seq in kept,
            **json.loads(event.data),
        }
        for event in events
    ]
    return answer({"events": story}, headers={"Cache-Control": PRIVATE})


_NUMBER = {"type": "integer", "minimum": 1, "maximum": 10**9 - 1}
_NAME = {"type": "string", "maxLength": 200}
_Incumbent = Annotated[str | None, Stated(_NUMBER), Query(description="the number of an incumbent event: its plan")]
_Baseline = Annotated[str | None, Stated(_NAME), Query(description="the name of a baseline, as a second plan")]


@router.get("/plans/{plan_id}/picture", responses=NOT_MODIFIED, openapi_extra=noting(409))
async def get_picture(
    request: Request,
    service: Serving,
    *,
    caller: Reader,
    job: ReadableJob,
    incumbent: _Incumbent = None,
    against: Second = None,
    baseline: _Baseline = None,
) -> Response:
    """What the page draws; with `?incumbent=SEQ` an earlier plan, with `?against=ID` or `?baseline=NAME` a second."""
    text = await _plan_text(service, job=job, asked=incumbent)
    beside = await read_other(service, caller, other_id=against)
    other = None if beside is None else await plan_text(service, beside)
    name = f"picture-{_digest(text, other or '', baseline or '')}"
    tag = f'"{name}-{RELEASE}"'  # the page of another release wants another picture
    if is_known(request, tag):
        return not_modified(tag, cache_control=PRIVATE)

    async def make() -> str:
        made = await inspected(service, job, what="picture", plan=text, other=other, baseline=baseline)
        return str(made["text"])

    is_final = job.is_finished and incumbent is None
    picture = await (service.gallery.get(job.id, name, make=make) if is_final else make())
    headers = {"ETag": tag, "Cache-Control": PRIVATE}
    return Response(picture.encode(), headers=headers, media_type="application/json")


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


async def _plan_text(service: Service, *, job: Job, asked: str | None) -> str:
    """The best plan so far, or that of an earlier incumbent; raises ServiceError 404 or 409."""
    if asked is None:
        return await _newest_plan(service, job)
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 9):
        raise invalid("/incumbent", "give the number of an incumbent event")
    return found(await to_thread(service.store.incumbent_text, job.id, int(asked)))


async def _newest_plan(service: Service, job: Job) -> str:
    text = await to_thread(service.store.plan_text, job.id)
    if text is None:
        raise ServiceError(409, "no_plan", detail="there is no plan yet; try again", headers={"Retry-After": "1"})
    return text


_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.post(
    "/traces", response_model=dict[str, Any], openapi_extra={"requestBody": {"required": True, "content": _BYTES}}
)
async def look_at_trace(request: Request, service: Serving, *, caller: Writer) -> Response:
    """A production job by its trace: as it ran, replayed, dealt anew, and what is slow; nothing is stored."""
    body = await read_body(request, service.open_requests, is_json=False)
    made = await service.inspector.ask(
        caller.tenant, lambda: {"what": "job_trace", "data": base64.b64encode(body).decode()}
    )
    return answer(made["trace"], headers={"Cache-Control": "no-store"})


@router.post("/what-if/ranges", response_model=Ranges, openapi_extra=noting(404, 409, body=RangeOrder))
async def find_ranges(request: Request, service: Serving, *, caller: Writer) -> Response:
    """Between what the best plan of each change lies, for certain and at once."""
    order: RangeOrder = await read_as(RangeOrder, request, service=service)
    if len(order.changes) > _MOST_CHANGES:
        raise invalid("/changes", f"give at most {_MOST_CHANGES} changes", code="limit")
    job = found(await to_thread(service.store.get, order.base, tenant=caller.tenant), "/base")
    changes = [asdict(change) for change in order.changes]
    made = await inspected(service, job, what="ranges", plan=await _newest_plan(service, job), changes=changes)
    return answer({"ranges": made["ranges"]}, headers={"Cache-Control": "no-store"})
