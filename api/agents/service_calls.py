"""The tools' way to a service in the same process: its own HTTP interface, so that keys, limits and checks are its."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from api.agents.tool_problem import ToolProblem, problem_of
from api.client import JobDocument
from api.jobs.job import FINISHED

Hear = Callable[[JobDocument], Awaitable[None]]
"""Told of every change of a search."""

_LEAST_PAUSE_S = 0.2
"""Between two looks at a search, where the service has no place to wait in."""


class ServiceCalls:
    """Requests of one application; `key`: the header Authorization of the one that calls the tool."""

    def __init__(self, app: FastAPI) -> None:
        transport = ASGITransport(app=app, raise_app_exceptions=False)
        self._http = AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None)

    async def ask(
        self, method: str, path: str, *, key: str | None, body: Mapping[str, Any] | None = None, **headers: str
    ) -> Any:
        """The JSON, or the text, of the answer; raises ToolProblem for a refusal."""
        sent = headers | ({} if key is None else {"Authorization": key})
        answer = await self._http.request(method, path, json=body, headers=sent)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        found = json.loads(answer.content) if kind.endswith("json") else answer.text
        if answer.status_code >= 400:
            raise problem_of(found if isinstance(found, dict) else {"status": answer.status_code})
        return found

    async def search(self, path: str, body: Mapping[str, Any], *, key: str | None, hear: Hear) -> JobDocument:
        """The finished job of a question; cancelled, it lets the search end with its best plan, and frees the worker.

        Raises ToolProblem for a question without a verified plan.
        """
        with anyio.CancelScope(shield=True):  # a question that is stored is known by its id
            job: JobDocument = await self.ask("POST", path, key=key, body=body)
        try:
            while job["state"] not in FINISHED:
                await hear(job)
                await anyio.sleep(_LEAST_PAUSE_S)
                job = await self.ask("GET", f"/v1/plans/{job['id']}", key=key, Prefer="wait=1")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.ask("POST", f"/v1/plans/{job['id']}:stop", key=key)
            raise
        if job["state"] != "succeeded":
            error = job["error"] or {"code": job["state"], "detail": "the search was stopped before there was a plan"}
            raise ToolProblem(error["code"], detail=error["detail"], status=409)
        return job
