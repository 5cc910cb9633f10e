"""The tools' way to a service in the same process: its own HTTP interface, so that keys, limits and checks are its."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from api.agents.kept_workloads import KeptWorkloads
from api.agents.tool_problem import ToolProblem, problem_of
from api.client import JobDocument
from api.jobs.job import FINISHED

Hear = Callable[[JobDocument], Awaitable[None]]
"""Told of every change of a search."""

_LEAST_PAUSE_S = 0.2
"""Between two looks at a search, where the service has no place to wait in."""


def connect(app: FastAPI) -> AsyncClient:
    """Asks the application as a client on this machine would."""
    transport = ASGITransport(app=app, raise_app_exceptions=False)
    return AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One client's connection: its service, and the tenant and scopes of its key."""

    http: AsyncClient
    workloads: KeptWorkloads
    key: str | None
    """The header Authorization that it came with."""
    hear: Hear
    """Told how a search goes."""

    async def ask(self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        """The JSON, or the text, of the service's answer; raises ToolProblem for a refusal."""
        sent = headers | ({} if self.key is None else {"Authorization": self.key})
        answer = await self.http.request(method, path, json=body, headers=sent)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        found = json.loads(answer.content) if kind.endswith("json") else answer.text
        if answer.status_code >= 400:
            raise problem_of(found if isinstance(found, dict) else {"status": answer.status_code})
        return found

    async def search(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The finished job of a question; cancelled, it lets the search end with its best plan, and frees the worker.

        Raises ToolProblem for a question without a verified plan.
        """
        with anyio.CancelScope(shield=True):  # a question that is stored is known by its id
            job: dict[str, Any] = await self.ask("POST", path, body=body)
        try:
            while job["state"] not in FINISHED:
                await self.hear(cast(JobDocument, job))
                await anyio.sleep(_LEAST_PAUSE_S)
                job = await self.ask("GET", f"/v1/plans/{job['id']}", Prefer="wait=1")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.ask("POST", f"/v1/plans/{job['id']}:stop")
            raise
        if job["state"] != "succeeded":
            error = job["error"] or {"code": job["state"], "detail": "the search was stopped before there was a plan"}
            raise ToolProblem(error["code"], detail=error["detail"], status=409)
        return job
