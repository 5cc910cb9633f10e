"""How agents reach the tools: over standard input and output, or beside the service's own interface at /mcp."""

import contextlib
import tempfile
from asyncio import to_thread
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, Request
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from api.agents.mcp_server import make_mcp_server
from api.jobs.workers.runner import Patience
from api.service.app import make_app
from api.service.core import Service
from api.service_commands import run_server
from api.settings import Settings

PATH = "/mcp"
"""Of the tools, on the service's address."""

_LEAVING = Patience(drain_s=1.0, stop_s=2.0)
"""A client that closes the standard input waits seconds for the end, and then kills."""


_INSPECTION_S = 120.0
"""How long a check may take: nobody else waits for it."""


def run_stdio(settings: Settings, *, data: Path | None) -> None:
    """Serve one client over standard input and output; without `data` nothing is kept."""
    with contextlib.ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeplan-")))
        own = replace(settings, data=folder, needs_keys=False, patience=_LEAVING)
        app = make_app(replace(own, inspection_s=_INSPECTION_S, num_helpers=1))
        anyio.run(_serve_stdio, app)


async def _serve_stdio(app: FastAPI) -> None:
    server = make_mcp_server(app)
    async with app.router.lifespan_context(app), stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def run_http(settings: Settings, *, host: str, port: int, wait_s: float) -> None:
    """The service with its tools, until a signal ends it; `wait_s`: for a database that is not there yet."""
    run_server(settings, host=host, port=port, wait_s=wait_s, make=make_agents_app)


def make_agents_app(settings: Settings) -> FastAPI:
    """The service's application, with the tools at `PATH`; who may call them, the service's gate decides."""
    app = make_app(settings)
    server = make_mcp_server(app)
    tools = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate's own does it
    )
    limited = RequestBodyLimitMiddleware(_gated(tools, app.state.service), settings.traffic.max_body_bytes)
    app.router.routes.append(Route(PATH, limited))
    app.router.lifespan_context = _with_sessions(app.router.lifespan_context, server)
    return app


def _with_sessions(lifespan: Any, server: "Server[Any]") -> Any:
    @contextlib.asynccontextmanager
    async def both(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(app), server.session_manager.run():
            yield

    return both


def _gated(app: ASGIApp, service: Service) -> ASGIApp:
    """Lets in the one that may look at plans; each call's own scope is asked for by the service again."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        caller = await to_thread(service.gate.admit, request, "plans:read")
        request.state.caller = caller
        token = AccessToken(token="", client_id=caller.label, scopes=[])  # sessions are their maker's alone
        await app({**scope, "user": AuthenticatedUser(token)}, receive, send)

    return handle
