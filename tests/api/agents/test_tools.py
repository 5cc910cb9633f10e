"""What agents do with the tools, by the protocol's own client."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.api.agents.tool_worlds import CONFIGURATION, LONG, call, converse

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp import Client


def test_from_a_configuration_to_a_verified_plan(tmp_path: Path):
    """Tests that six calls lead from a launch script to a verified plan, its explanation, a change and its document."""
    heard: list[tuple[float, str]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message or ""))

    async def conversation(client: Client, app: FastAPI) -> None:
        audited = await call(client, "audit", **CONFIGURATION)
        assert audited["verdict"] == "runs"
        limits = {"max_rounds": 0, "threads": 1, "time_limit_s": 600}
        planned = await client.call_tool(
            "plan", {"workload_id": audited["workload_id"], "limits": limits}, progress_callback=hear
        )
        assert not planned.is_error, planned.content
        plan: dict[str, Any] = planned.structured_content or {}
        assert plan["verdict"] == {"passed": True}
        assert plan["lower_bound_ns"] <= plan["incumbent_ns"] <= audited["run"]["time_ns"]
        assert (await call(client, "verify", plan_id=plan["id"], certificate=True))["passed"]
        explained = await call(client, "explain", plan_id=plan["id"])
        assert explained["makespan_ns"] == plan["incumbent_ns"]
        assert explained["gap"] == pytest.approx(plan["gap"])
        changed = await call(client, "what_if", base=plan["id"], change={"devices": 1}, limits=limits)
        assert changed["what_if"]["change"]["devices"] == 1
        document = await call(client, "get_document", plan_id=plan["id"])
        assert document["document"]["evidence"]["verdict"]["passed"]
        assert heard
        assert all(plan["id"] in message for _, message in heard)
        assert [progress for progress, _ in heard] == sorted(progress for progress, _ in heard)

    converse(tmp_path, conversation)


def test_a_cancelled_search_ends(tmp_path: Path):
    """Tests that cancelling a call stops its search, keeps the best plan found and frees the worker for another."""

    async def conversation(client: Client, app: FastAPI) -> None:
        with anyio.CancelScope() as scope:

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                if message and "best" in message:
                    scope.cancel()

            await client.call_tool("plan", LONG, progress_callback=hear)
        assert scope.cancelled_caught
        store = app.state.service.store
        (job,) = store.search("local", _everything(), limit=9)
        until = time.monotonic() + 120
        while not store.get(job.id).is_finished:
            assert time.monotonic() < until, "the search goes on"
            await asyncio.sleep(0.05)
        stopped = await call(client, "plan_status", plan_id=job.id)
        assert (stopped["state"], stopped["stopped_by"]) == ("succeeded", "user")
        assert stopped["verdict"] == {"passed": True}
        again = await call(client, "plan", start_from=job.id, limits={"time_limit_s": 0.5, "threads": 1})
        assert again["incumbent_ns"] <= stopped["incumbent_ns"]

    converse(tmp_path, conversation)


def _everything() -> Any:
    from api.jobs.job import Search

    return Search()
