"""The two ways to the tools: standard input and output, and HTTP with the service's keys."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from api.jobs.job import Search
from api.service.handlers.route_notes import example_submission
from tests.api.agents.tool_worlds import LONG, call, refused
from tests.api.service.servers import Running, serving

if TYPE_CHECKING:
    from mcp import Client


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with keys, with tools."""
    from api.agents.transports import make_agents_app

    with serving(tmp_path_factory.mktemp("tools"), make=make_agents_app, needs_keys=True) as started:
        yield started


def status(running: Running, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    """What a bare POST to the tools is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", json.dumps(body), accepted | headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if answer.status >= 400 else {}


def test_nobody_comes_in_without_a_key(tools: Running):
    """Tests that no key, a wrong or a revoked one are 401, and one for metrics 403, as in the service."""
    hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    ended = tools.service.keys.create("gone", scopes=("plans:read",))
    tools.service.keys.revoke(ended[0].id)
    found = status(tools, hello)
    assert found[0] == 401
    assert found[1]["code"] == "unauthenticated"
    for key in ("wrong", ended[1]):
        assert status(tools, hello, Authorization=f"Bearer {key}")[0] == 401
    limited = tools.key("ops", scopes=("metrics",))
    assert status(tools, hello, Authorization=f"Bearer {limited}")[0] == 403


@pytest.mark.slow
def test_tenants_see_their_own_plans(tools: Running):
    """Tests that a plan made with one tenant's key is not there for another's, nor made with a key that only reads."""
    keys = {"ours": tools.key("ours"), "theirs": tools.key("theirs")}
    reading = tools.key("ours", scopes=("plans:read",))
    question = {**example_submission(), "limits": {"max_rounds": 0, "threads": 1}}

    async def run() -> None:
        plans: dict[str, str] = {}
        for tenant, key in keys.items():
            async with _http(tools, key) as client:
                plans[tenant] = (await call(client, "plan", **question))["id"]
        async with _http(tools, keys["theirs"]) as client:
            assert (await call(client, "plan_status", plan_id=plans["theirs"]))["state"] == "succeeded"
            assert (await refused(client, "plan_status", plan_id=plans["ours"]))["status"] == 404
        async with _http(tools, reading) as client:
            assert (await call(client, "plan_status", plan_id=plans["ours"]))["state"] == "succeeded"
            assert (await refused(client, "plan", **question))["code"] == "scope_missing"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_cancels_over_http(tools: Running, mode: str):
    """Tests that cancelling over HTTP ends the search in the service, with and without sessions."""
    tenant = f"hasty-{mode}"

    async def run() -> None:
        async with _http(tools, tools.key(tenant), mode=mode) as client:
            with anyio.CancelScope() as scope:

                async def hear(progress: float, total: float | None, message: str | None) -> None:
                    if message and "best" in message:
                        scope.cancel()

                await client.call_tool("plan", LONG, progress_callback=hear)

    asyncio.run(run())
    until = time.monotonic() + 120
    while not all(job.is_finished for job in tools.service.store.search(tenant, Search(), limit=9)):
        assert time.monotonic() < until, "the search goes on"
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def _http(running: Running, key: str, *, mode: str = "auto") -> AsyncIterator[Client]:
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {key}"}
    async with (
        AsyncClient(headers=headers, timeout=60) as connection,
        Client(streamable_http_client(f"{running.url}/mcp", http_client=connection), mode=mode) as client,
    ):
        yield client
