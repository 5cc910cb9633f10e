"""What becomes of a plan outside, told to the webhooks of its tenant: it drifted, or a device was lost."""

import json
from asyncio import to_thread
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.jobs.request import SOURCE, parse_tree
from api.service.access import Serving, WritableJob
from api.service.handlers.plan_handlers import refusing
from api.service.handlers.responses import answer
from api.service.http.problem_json import ServiceError
from api.service.http.request_body import read_body
from profiles.documents.schema_rules import JSON_OBJECT, Stated
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate

router = APIRouter(prefix="/v1/plans")

_MOST_DETAIL = 16 * 2**10
"""Letters of a notice's detail as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(StrictRecord):
    """The body of `POST /v1/plans/{id}:notify`."""

    event: Literal["drifted", "device_lost"]
    """What happened to the job that runs by the plan."""
    detail: Annotated[dict[str, Any], Stated(JSON_OBJECT)]
    """What is known of it; webhooks get it as it is."""

    def __post_init__(self) -> None:
        if len(json.dumps(self.detail)) > _MOST_DETAIL:
            raise ValueError(f"notice: detail has more than {_MOST_DETAIL} letters; shorten it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The number of webhooks that a notice goes to."""

    num_webhooks: int


@router.post("/{plan_id}:notify")
async def notify(request: Request, service: Serving, *, job: WritableJob) -> Response:
    """Tell the tenant's webhooks what became of the plan."""
    body = await read_body(request, service.open_requests)
    with refusing():
        notice: Notice = validate(Notice, parse_tree(body), source=SOURCE)
    told = await to_thread(service.webhooks.notify, job, event=notice.event, detail=notice.detail)
    if told is None:
        raise ServiceError(
            429, "too_many_notices", detail="too many notices wait; try again later", headers={"Retry-After": "60"}
        )
    return answer(asdict(Told(num_webhooks=told)), status=202, headers={"Cache-Control": "no-store"})
