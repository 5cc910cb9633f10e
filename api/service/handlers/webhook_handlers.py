"""Webhooks over HTTP: name an address, list them, take one back."""

import re
from asyncio import to_thread
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import Request
from fastapi.responses import Response

from api.jobs.moments import moment
from api.service.access import Reader, Serving, Writer
from api.service.handlers.answers import Moment
from api.service.handlers.bodies import read_as, refusing
from api.service.handlers.responses import answer
from api.service.handlers.route_notes import answering, noting, router_at
from api.service.http.problem_json import ServiceError, not_found
from api.service.webhooks import MOST_LETTERS, URL
from profiles.documents.schema_rules import Stated
from profiles.documents.strict_record import StrictRecord

router = router_at("/v1/webhooks")

_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_WebhookId = Annotated[str, Stated(pattern=f"^{_ID.pattern}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook(StrictRecord):
    """The body of `POST /v1/webhooks`."""

    url: Annotated[str, Stated(maxLength=MOST_LETTERS, pattern=f"^{URL.pattern}$")]
    """Where to POST when a job of the tenant ends."""

    def __post_init__(self) -> None:
        if len(self.url) > MOST_LETTERS:
            raise ValueError(f"webhook: url has more than {MOST_LETTERS} letters; give a shorter one")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWebhook:
    """A new address; the secret is shown once."""

    id: str
    url: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookShown:
    """An address, without its secret."""

    id: str
    url: str
    created_at: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookList:
    """The caller's addresses."""

    webhooks: list[WebhookShown]


@router.post(
    "",
    status_code=201,
    response_model=MadeWebhook,
    responses={201: answering("The secret is shown once", Location="The webhook")},
    openapi_extra=noting(409, body=NewWebhook),
)
async def create_webhook(request: Request, service: Serving, *, caller: Writer) -> Response:
    """Name an address; messages are signed (X-Pipeplan-Signature: t=SECONDS,v1=HMAC-SHA256 of SECONDS.BODY)."""
    wanted: NewWebhook = await read_as(NewWebhook, request, service=service)
    if not service.webhooks.is_on:
        raise ServiceError(
            409, "webhooks_off", detail="the operator allows no hosts; start the service with --webhook-host"
        )
    with refusing():
        made, secret = await to_thread(service.webhooks.create, caller.tenant, wanted.url)
    await to_thread(service.audit.add, actor=caller.label, action="webhook.created", subject=made.id)
    document = asdict(MadeWebhook(id=made.id, url=made.url, secret=secret))
    return answer(document, status=201, headers={"Location": f"/v1/webhooks/{made.id}", "Cache-Control": "no-store"})


@router.get("", response_model=WebhookList, response_description="Without secrets")
async def list_webhooks(service: Serving, caller: Reader) -> Response:
    """Addresses that hear when a plan ends, without their secrets."""
    rows = await to_thread(service.webhooks.listed, caller.tenant)
    found = [WebhookShown(id=row.id, url=row.url, created_at=moment(row.created_at)) for row in rows]
    return answer(asdict(WebhookList(webhooks=found)), headers={"Cache-Control": "no-store"})


@router.delete("/{webhook_id}", status_code=204, response_description="Gone")
async def delete_webhook(service: Serving, *, caller: Writer, webhook_id: _WebhookId) -> Response:
    """Say nothing to an address any more, and forget it."""
    is_id = _ID.fullmatch(webhook_id) is not None
    if not is_id or not await to_thread(service.webhooks.remove, webhook_id, caller.tenant):
        raise not_found()
    await to_thread(service.audit.add, actor=caller.label, action="webhook.deleted", subject=webhook_id)
    return Response(status_code=204)
