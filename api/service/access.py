"""Who asks, and what of their jobs they ask about."""

import json
import re
from asyncio import to_thread
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes

from api.jobs.job import Job, LeaseLostError
from api.jobs.request_fields import PlanId
from api.service.auth import Caller
from api.service.core import Service
from api.service.http.problem_json import ServiceError, found, not_found

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


async def service_of(request: Request) -> Service:
    """The service behind the request."""
    service: Service = request.app.state.service
    return service


async def admitted(request: Request, asked: SecurityScopes) -> Caller:
    """A caller with the scope that the route names, whom the log names, too; raises ServiceError 401, 403 or 429."""
    service, (scope,) = await service_of(request), asked.scopes
    caller = await to_thread(service.gate.admit, request, scope)
    request.state.caller = caller
    return caller


Serving = Annotated[Service, Depends(service_of)]
Reader = Annotated[Caller, Security(admitted, scopes=["plans:read"])]
Writer = Annotated[Caller, Security(admitted, scopes=["plans:write"])]


def is_plan_id(text: str) -> bool:
    """Whether a text is 32 hexadecimal digits, as ids are."""
    return _ID.fullmatch(text) is not None


async def job_of(service: Service, caller: Caller, *, job_id: str) -> Job | None:
    """The caller's job of that name; None if there is none, or it is another's."""
    if not is_plan_id(job_id):
        return None
    return await to_thread(service.store.get, job_id, tenant=caller.tenant)


async def find(service: Serving, caller: Annotated[Caller, Security(admitted)], *, plan_id: PlanId) -> Job:
    """The job of the path, if it is the caller's; raises ServiceError 404."""
    return found(await job_of(service, caller, job_id=plan_id))


ReadableJob = Annotated[Job, Security(find, scopes=["plans:read"])]
WritableJob = Annotated[Job, Security(find, scopes=["plans:write"])]


async def workload_of(service: Service, job: Job) -> dict[str, Any]:
    """The document that the job was asked; raises ServiceError 404 if it was deleted meanwhile."""
    try:
        text = await to_thread(service.store.request_text, job.id)
    except LeaseLostError:
        raise not_found() from None
    return {"format": "pipeline-workload/1", **json.loads(text)["workload"]}


def require_plan(job: Job) -> None:
    """Raise ServiceError 409 unless the job has ended with a plan."""
    if not job.is_finished:
        detail = "the plan is not finished; follow its events, or stop it"
        raise ServiceError(409, "not_finished", detail=detail, headers={"Retry-After": "2"})
    if job.state != "succeeded" or job.plan_sha256 is None:
        raise ServiceError(409, "no_plan", detail="the job ended without a plan; see its status for the reason")


async def plan_text(service: Service, job: Job) -> str:
    """The final plan's document; raises ServiceError 404 if it was deleted meanwhile."""
    return found(await to_thread(service.store.plan_text, job.id))


async def read_other(service: Service, caller: Caller, *, other_id: str | None) -> Job | None:
    """The job whose plan is looked at beside it, if one is named; raises ServiceError 404 or 409."""
    if other_id is None:
        return None
    other = found(await job_of(service, caller, job_id=other_id))
    require_plan(other)
    return other
