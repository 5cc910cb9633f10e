"""What becomes of a plan outside, told to the webhooks of its tenant: it drifted, or a device was lost."""

import json
from asyncio import to_thread
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import Response

from api.service.access import Serving, WritableJob
from api.service.handlers.bodies import read_as
from api.service.handlers.responses import answer
from api.service.handlers.route_notes import noting, router_at
from api.service.http.problem_json import ServiceError
from profiles.documents.schema_rules import JSON_OBJECT, Stated
from profiles.documents.strict_record import StrictRecord

router = router_at("/v1/plans")

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


@router.post(
    "/{plan_id}:notify",
    status_code=202,
    response_model=Told,
    response_description="How many will hear",
    openapi_extra=noting(body=Notice),
)
async def notify(request: Request, service: Serving, *, job: WritableJob) -> Response:
    """Tell the tenant's webhooks what became of the plan."""
    notice: Notice = await read_as(Notice, request, service=service)
    told = await to_thread(service.webhooks.notify, job, event=notice.event, detail=notice.detail)
    if told is None:
        raise ServiceError(
            429, "too_many_notices", detail="too many notices wait; try again later", headers={"Retry-After": "60"}
        )
    return answer(asdict(Told(num_webhooks=told)), status=202, headers={"Cache-Control": "no-store"})
