"""The application: `make_app` puts the doors on a service."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from api.jobs.job import DamagedError
from api.jobs.logs import REQUEST_ID, request_id
from api.jobs.logs import tell as log
from api.jobs.stores.store import STORE_FAILURES, StoreFullError
from api.service.core import Service
from api.service.handlers.responses import render_json
from api.service.http.problem_json import ServiceError
from api.service.http.request_admission import AsgiApp, Message, Receive, Send, admit_bodies
from api.service.http.request_body import busy
from api.service.openapi import ROUTERS, allowed_methods, make_document, refuse_query, require_known_query
from api.service.warmup import build_everything
from api.settings import Settings

logger = logging.getLogger(__name__)

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""On every answer."""


def make_app(settings: Settings) -> FastAPI:
    """The application of a service, which starts and ends with the application's lifespan."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        await asyncio.to_thread(build_everything)  # the server listens only after this
        async with service.lifespan():
            yield

    app = FastAPI(
        title="pipeplan", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(require_known_query)])
    app.openapi = make_document  # type: ignore[method-assign]
    for kind in (ServiceError, HTTPException, RequestValidationError, *STORE_FAILURES, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(watch, service=service)
    if settings.traces:
        from api.service.http.tracing import traced

        app.add_middleware(traced)
    app.add_middleware(admit_bodies)
    return app


def _problem_answer(error: ServiceError) -> Response:
    """A problem document."""
    headers = {"Cache-Control": "no-store"} | error.headers
    return Response(
        render_json(error.document()), status_code=error.status, headers=headers, media_type="application/problem+json"
    )


async def _on_error(request: Request, error: Exception) -> Response:
    return _problem_answer(_problem_of(request, error))


def _problem_of(request: Request, error: Exception) -> ServiceError:
    """What the client hears of an error; of one that nobody foresaw the log has the trace, the client has not."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, RequestValidationError):
        return refuse_query(request, error)
    if isinstance(error, HTTPException):
        return _http_problem(request, error)
    if isinstance(error, DamagedError):
        logger.error("the store is damaged: %s", error)
        detail = f"{error} is not as it was stored; delete it, or let the operator restore a backup"
        return ServiceError(500, "damaged", detail=detail)
    if isinstance(error, STORE_FAILURES):
        logger.warning("the store failed: %r", error)
        if isinstance(error, StoreFullError):
            detail = "the service's disk is full; delete plans, or tell the operator"
            return ServiceError(507, "store_full", detail=detail)
        detail = "the store does not answer; try again"
        return ServiceError(503, "store_away", detail=detail, headers={"Retry-After": "5"})
    detail, headers = "please report it with the answer's X-Request-ID", {"X-Request-ID": request_id.get() or ""}
    return ServiceError(500, "internal_error", detail=detail, headers=headers)


def _http_problem(request: Request, error: HTTPException) -> ServiceError:
    headers, detail = dict(error.headers or {}), "see /v1/openapi.json for what there is"
    if error.status_code == 405:
        methods = allowed_methods(request.url.path) or headers.get("Allow", "GET").split(", ")
        headers["Allow"] = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        detail = f"use {headers['Allow']}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return ServiceError(error.status_code, code, detail=detail, headers=headers)


_PROBES = ("/livez", "/readyz")
"""Answered however much is under way."""


def watch(app: AsgiApp, *, service: Service) -> AsgiApp:
    """Times every request, puts the common headers on its answer, and refuses what is too much at once."""
    open_requests = service.open_requests

    async def handle(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        begin, status, method = time.monotonic(), 500, scope["method"]
        request_id.set(_request_id(scope))
        if method == "HEAD":  # answered as GET is, without a body
            scope, send = {**scope, "method": "GET"}, _without_body(send)

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = (b"x-request-id", (request_id.get() or "").encode())
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS, known]}
            await send(message)

        is_too_much = open_requests.num_served >= open_requests.traffic.requests and scope["path"] not in _PROBES
        open_requests.num_requests += 1
        try:
            answer = _problem_answer(busy("too many requests are under way; try again")) if is_too_much else app
            await answer(scope, receive, tell)
        finally:
            open_requests.num_requests -= 1
            open_requests.let_go(scope.get("state", {}).get("body_bytes", 0))
            route = getattr(scope.get("route"), "path_format", "unknown")
            known = method if method in ("GET", "POST", "DELETE", "HEAD") else "other"
            seconds = time.monotonic() - begin
            service.metrics.observe(known, route, status=status, seconds=seconds)
            caller = scope.get("state", {}).get("caller")
            whose = {} if caller is None else {"tenant": caller.tenant, "key": caller.key_id}
            log("request", method=known, route=route, status=status, seconds=round(seconds, 4), **whose)

    return handle


def _request_id(scope: MutableMapping[str, Any]) -> str:
    """The one that the client or a proxy gave, if it can stand in logs, else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _without_body(send: Send) -> Send:
    """Ends the answer with its header, so that a stream does not begin."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return tell
