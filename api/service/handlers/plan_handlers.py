"""The plans: submit, wait, look, follow, stop, pin, delete."""

import asyncio
import hashlib
import re
import uuid
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator, Field

from api.jobs.job import Event, Job, NewJob, Quota, Search
from api.jobs.logs import request_id, tell
from api.jobs.request import PlanRequest, Submission, parse_tree, read_tree, require_labels
from api.jobs.request_fields import PlanId, Project, Tags, shared_fields
from api.service.access import ReadableJob, Reader, Serving, WritableJob, Writer, is_plan_id, job_of, workload_of
from api.service.auth import Caller, unauthenticated
from api.service.core import Service
from api.service.handlers import answers
from api.service.handlers.bodies import read_as, refusing
from api.service.handlers.responses import answer, is_known, job_answer, job_document, not_modified, tag_of
from api.service.handlers.route_notes import (
    NOT_MODIFIED,
    Responses,
    Schema,
    answering,
    example_submission,
    noting,
    router_at,
)
from api.service.http.problem_json import ServiceError, found, invalid, not_found
from api.service.http.request_body import read_body
from api.service.streams import Stream
from profiles.documents.strict_record import StrictRecord
from profiles.unlikely_figures import unlikely_parts

router = router_at("/v1/plans")

PING_S = 15.0
"""An event stream says something at least so often."""

PAUSE_S = 1.0
"""And at most so often, but of the end at once."""

_KEY = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
Act = Callable[..., Awaitable[Response]]
"""Answers a body that is new: service, request, caller, body, idempotency key and digest."""

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,18})(?=$|[,;\s])", re.ASCII | re.IGNORECASE)


def _waiting_s(request: Request, most: int) -> int:
    """Seconds of `Prefer: wait=N`, 0 without it."""
    match = _WAIT.search(request.headers.get("prefer", ""))
    return min(int(match[1]), most) if match else 0


_NEXT = (
    *("get_plan", "follow_plan", "get_plan_document", "get_trace", "get_report", "get_view"),
    *("stop_plan", "pin_plan", "unpin_plan", "delete_plan"),
)
_THIS = {"plan_id": "$response.body#/id"}
_WHAT_IF = {"base": "$response.body#/id", "change": {"devices": 1}}
_LINKS: Schema = {
    **{name: {"operationId": name, "parameters": _THIS} for name in _NEXT},
    "export_plan": {"operationId": "export_plan", "parameters": {**_THIS, "form": "trace"}},
    "ask_what_if": {"operationId": "ask_what_if", "requestBody": _WHAT_IF},
}
"""What can be done next with a plan that was submitted."""
_DONE = answering("Done, or known already", Location="The plan", X_Cache="HIT or MISS") | {"links": _LINKS}
_GOING = answering("Accepted", Location="The plan", Retry_After="Seconds", X_Cache="MISS") | {"links": _LINKS}
_TAGGED = answering("The plan", ETag="Changes with the plan")
_JOB: dict[str, Any] = {"response_model": answers.Job, "responses": {200: _TAGGED}}
"""What most routes of plans answer."""

# ---------------------------------------------------------------- submit


@router.post(
    "",
    response_model=answers.Job,
    responses={200: _DONE, 202: {**_GOING, "model": answers.Job}},
    openapi_extra=noting(
        404, 409, body=Submission, example=example_submission(), headers=("Prefer", "Idempotency-Key")
    ),
)
async def submit_plan(request: Request, service: Serving, *, caller: Writer) -> Response:
    """Submit a question."""
    return await answer_once(service, request, caller=caller, what="plan", act=_submit)


async def answer_once(service: Service, request: Request, *, caller: Caller, what: str, act: Act) -> Response:
    """Answer a body, or as it was answered before under the same idempotency key."""
    body = await read_body(request, service.open_requests)
    prefix = b"" if what == "plan" else what.encode() + b"\n"  # the same body asked elsewhere is another
    key, digest = _idempotency_key(request), hashlib.sha256(prefix + body).hexdigest()
    if key is not None:
        with refusing():
            known = await to_thread(service.store.recall, caller.tenant, idempotency_key=key, body_sha256=digest)
        if known is not None:
            return await accepted(service, request, caller=caller, job=known)
    return await act(service, request, caller=caller, body=body, key=key, digest=digest)


def _idempotency_key(request: Request) -> str | None:
    """The key of the request, if it has one; raises ServiceError 400 for one that cannot be."""
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise ServiceError(400, "idempotency_key", detail="give 1 to 200 visible ASCII characters as Idempotency-Key")
    return key


async def _submit(
    service: Service, request: Request, *, caller: Caller, body: bytes, key: str | None, digest: str
) -> Response:
    with refusing():
        tree = await to_thread(parse_tree, body)
    base = await _base_of(service, caller, tree=tree)
    with refusing():
        submission, plan = await to_thread(read_tree, tree, service.settings.ceilings)
    doubts = unlikely_parts(plan.problem.profile, plan.problem.cluster)
    new = replace(new_job(caller, submission=submission, plan=plan), base_id=None if base is None else base.id)
    if "no-cache" not in request.headers.get("cache-control", ""):
        hit = await to_thread(service.store.find_answer, new, gap=plan.limits.gap)
        if hit is not None:
            known = await _remember(service, caller, key=key, digest=digest, job=hit)
            if known is not None and known.id != hit.id:
                return await accepted(service, request, caller=caller, job=known)
            service.metrics.cache_hits.inc()
            return job_answer(hit, headers={"Location": f"/v1/plans/{hit.id}", "X-Cache": "HIT"}, doubts=doubts)
    job = await enqueue(service, caller, new=new, key=key, digest=digest)
    return await accepted(service, request, caller=caller, job=job, doubts=doubts)


async def _base_of(service: Service, caller: Caller, *, tree: dict[str, Any]) -> Job | None:
    """The plan that the search is to begin with, whose workload stands for one that is left out.

    Raises ServiceError 404 for a plan that the caller cannot see.
    """
    wanted = tree.get("start_from")
    if wanted is None:
        return None
    if not isinstance(wanted, str):
        raise invalid("/start_from", "start_from is not a string; put it in double quotes")
    base = found(await job_of(service, caller, job_id=wanted), "/start_from")
    if "workload" not in tree:
        tree["workload"] = await workload_of(service, base)
    return base


async def _remember(service: Service, caller: Caller, *, key: str | None, digest: str, job: Job) -> Job | None:
    """What the cache answers uses its key up, too; gives the job of the key if another instance has stored one."""
    if key is None:
        return None
    with refusing():
        return await to_thread(
            service.store.remember, caller.tenant, idempotency_key=key, body_sha256=digest, job_id=job.id
        )


def new_job(caller: Caller, *, submission: Submission, plan: PlanRequest) -> NewJob:
    """The row of a request."""
    told: dict[str, Any] = {}
    for source in (submission, plan, caller):
        told |= shared_fields(source, NewJob)
    told |= {"id": uuid.uuid4().hex, "request_id": request_id.get(), "request": plan.render()}
    told |= {"profile_sha256": plan.problem.profile_sha256, "name": plan.problem.profile.name}
    return NewJob(**told | {"is_pinned": submission.pinned, "tags": joined(submission.tags)})


def joined(tags: tuple[str, ...]) -> str:
    """Tags as they are stored: each once, in order, between spaces."""
    return f" {' '.join(sorted(set(tags)))} " if tags else ""


async def enqueue(service: Service, caller: Caller, *, new: NewJob, key: str | None = None, digest: str = "") -> Job:
    """Store the job and announce it; raises ServiceError 429 beyond the caller's limits, 503 while shutting down."""
    if service.is_draining:
        raise ServiceError(503, "shutting_down", detail="try another instance", headers={"Retry-After": "5"})
    quota = Quota(
        unfinished_jobs=caller.concurrent_jobs,
        hourly_jobs=caller.hourly_jobs,
        stored_bytes=service.settings.traffic.stored_bytes,
    )
    with refusing():
        job, is_new = await to_thread(service.store.submit, new, idempotency_key=key, body_sha256=digest, quota=quota)
    if is_new:
        service.metrics.jobs_submitted.inc()
        tell("job stored", job=job.id, tenant=job.tenant, bytes=len(new.request))
        await to_thread(service.engine.announce)
    return job


async def accepted(
    service: Service, request: Request, *, caller: Caller, job: Job, doubts: Sequence[str] = ()
) -> Response:
    """202 with the address, or 200 if it is done within the time that the client prefers to wait."""
    seconds = _waiting_s(request, service.settings.traffic.max_wait_s)
    if seconds and not job.is_finished:
        job = await _wait(service, caller, job=job, seconds=seconds)
    headers = {"Location": f"/v1/plans/{job.id}", "X-Cache": "MISS"}
    if job.is_finished:
        return job_answer(job, headers=headers, doubts=doubts)
    return job_answer(job, status=202, headers=headers | {"Retry-After": "1"}, doubts=doubts)


async def _wait(service: Service, caller: Caller, *, job: Job, seconds: float) -> Job:
    """The job when it is finished, or as it is after so many seconds; raises ServiceError 401 if the key ends."""
    if not service.streams.has_room(caller.tenant):
        return job  # it is stored, so the one that cannot wait for it is told so, and asks later
    with service.streams.place(caller, job.id) as stream:
        present = await _watch(service, stream, job=job, seconds=seconds)
        if stream.is_over:
            raise unauthenticated("the key is not valid any more; use another one")
    return found(present)


async def _watch(service: Service, stream: Stream, *, job: Job, seconds: float) -> Job | None:
    """The job when it is finished, or as it is after so many seconds, or once nobody may wait; None if it is gone."""
    clock, present = asyncio.get_running_loop().time, job
    until = clock() + seconds
    while not present.is_finished and (left := until - clock()) > 0 and not (service.is_draining or stream.is_over):
        await service.hub.wait(job.id, present.version, timeout_s=min(5.0, left))
        looked = await to_thread(service.store.get, job.id)
        if looked is None:
            return None
        present = looked
    return present


# ---------------------------------------------------------------- look


class _Listing(Search):
    """Which plans are listed, and how many."""

    limit: Annotated[int, BeforeValidator(lambda text: text if re.fullmatch("[0-9]+", text) else None)] = Field(
        20, ge=1, le=100, description="a number from 1 to 100"
    )


@router.get("", response_model=answers.Jobs, response_description="Latest first")
async def list_plans(
    request: Request, service: Serving, *, caller: Reader, asked: Annotated[_Listing, Query()]
) -> Response:
    """The caller's plans, latest first: all of them, or those that are searched for."""
    with refusing():
        jobs = await to_thread(service.store.search, caller.tenant, asked, limit=asked.limit)
    document: dict[str, Any] = {"plans": [job_document(job) for job in jobs]}
    if len(jobs) == asked.limit:
        same = {name: value for name, value in request.query_params.items() if name != "after"}
        document["next"] = f"/v1/plans?{urlencode({**same, 'after': f'{jobs[-1].id}@{jobs[-1].created_at}'})}"
    return answer(document, headers={"Cache-Control": "private, no-cache"})


@router.get(
    "/{plan_id}",
    response_model=answers.Job,
    responses={200: _TAGGED, **NOT_MODIFIED},
    openapi_extra=noting(headers=("Prefer",)),
)
async def get_plan(request: Request, service: Serving, *, caller: Reader, job: ReadableJob) -> Response:
    """State, incumbent, bound, gap, verdict; `Prefer: wait=N` waits for the end."""
    seconds = _waiting_s(request, service.settings.traffic.max_wait_s)
    if seconds and not job.is_finished:
        job = await _wait(service, caller, job=job, seconds=seconds)
    if is_known(request, tag_of(job)):
        return not_modified(tag_of(job), cache_control="private, no-cache")
    return job_answer(job)


@router.get(
    "/{plan_id}/events",
    response_class=Response,
    responses={200: answering("The story", kind="text/event-stream", schema="StoryEvent")},
)
async def follow_plan(request: Request, service: Serving, *, caller: Reader, job: ReadableJob) -> Response:
    """Server-sent events: queued, started, incumbent, bound, log, done."""
    last = request.headers.get("last-event-id", "0")
    after = int(last) if last.isascii() and last.isdigit() and len(last) <= 9 else 0
    story = _story(service, caller, job=job, after=after)
    await anext(story)  # takes the place, or refuses, while there is still a status to say so with
    return StreamingResponse(story, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _story(service: Service, caller: Caller, *, job: Job, after: int) -> AsyncIterator[str]:
    clock = asyncio.get_running_loop().time
    with service.streams.place(caller, job.id) as stream:
        events = await to_thread(service.store.events, job.id, after=max(0, after - 1))
        if not events:  # of a store that was restored, the client knows more than there is
            after, events = 0, await to_thread(service.store.events, job.id, after=0)
        events = [event for event in events if event.seq > after]
        yield ""
        said = clock()
        while True:
            for event in latest(list(events)):
                yield f"id: {event.seq}\nevent: {event.kind}\ndata: {event.data}\n\n"
                after, said = event.seq, clock()
            if job.is_finished or service.is_draining:
                return
            if events:
                await _watch(service, stream, job=job, seconds=PAUSE_S)  # of its end everybody hears at once
            if stream.is_over:
                return
            silent_until = said + PING_S - PAUSE_S
            await service.hub.wait(job.id, job.version, timeout_s=max(0.0, silent_until - clock()))
            present = await to_thread(service.store.get, job.id)
            if present is None or stream.is_over:
                return
            if clock() >= silent_until:
                yield ": ping\n\n"
                said = clock()
            job = present
            events = await to_thread(service.store.events, job.id, after=after)


def latest(events: list[Event]) -> list[Event]:
    """Of what comes at once, only the last incumbent and the last bound."""
    last = {event.kind: event.seq for event in events}
    return [event for event in events if event.kind not in ("incumbent", "bound") or last[event.kind] == event.seq]


# ---------------------------------------------------------------- change


_STOPPED: Responses = {200: _TAGGED, 202: {**_TAGGED, "model": answers.Job}}


@router.post("/{plan_id}:stop", response_model=answers.Job, responses=_STOPPED)
async def stop_plan(service: Serving, job: WritableJob) -> Response:
    """Finish now with the best verified plan; asking twice changes nothing."""
    stopped = found(await to_thread(service.store.stop, job.id, job.tenant))
    return job_answer(stopped, status=200 if stopped.is_finished else 202)


@router.post("/{plan_id}:pin", **_JOB)
async def pin_plan(service: Serving, job: WritableJob) -> Response:
    """Keep the plan for good."""
    return job_answer(found(await to_thread(service.store.pin, job.id, job.tenant, is_pinned=True)))


@router.post("/{plan_id}:unpin", **_JOB)
async def unpin_plan(service: Serving, job: WritableJob) -> Response:
    """Let retention have it."""
    return job_answer(found(await to_thread(service.store.pin, job.id, job.tenant, is_pinned=False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing(StrictRecord):
    """The body of `POST /v1/plans/{id}:file`."""

    project: Project = ""
    """What to file the plan under; empty: nothing."""
    tags: Tags = ()
    """Words to find it by, instead of those that it has."""

    def __post_init__(self) -> None:
        require_labels(self.project, self.tags)


@router.post("/{plan_id}:file", **_JOB, openapi_extra=noting(body=Filing))
async def file_plan(request: Request, service: Serving, *, job: WritableJob) -> Response:
    """File the plan under a project and tags."""
    filing: Filing = await read_as(Filing, request, service=service)
    file = partial(service.store.file, job.id, job.tenant, project=filing.project, tags=joined(filing.tags))
    return job_answer(found(await to_thread(file)))


@router.delete("/{plan_id}", status_code=204, response_description="Forgotten")
async def delete_plan(service: Serving, *, caller: Writer, plan_id: PlanId) -> Response:
    """Cancel if it runs, then forget; what cannot be read any more can be deleted all the same."""
    if not is_plan_id(plan_id) or not await to_thread(service.store.forget, plan_id, caller.tenant):
        raise not_found()
    await to_thread(service.audit.add, actor=caller.label, action="plan.deleted", subject=plan_id)
    return Response(status_code=204)
