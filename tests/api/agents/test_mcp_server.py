"""The tools over the Model Context Protocol: tests of api/agents/mcp_server.py."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from tests.api.agents.tool_worlds import CONFIGURATION, converse

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp import Client


def test_a_cancelled_audit_ends(tmp_path: Path):
    """Tests that cancelling an audit ends the process that searches, within two seconds."""

    async def conversation(client: Client, app: FastAPI) -> None:
        inspector = app.state.service.inspector
        while not inspector.pids:
            await asyncio.sleep(0.05)
        with anyio.move_on_after(1.0) as scope:
            await client.call_tool("audit", CONFIGURATION | {"time_limit_s": 60.0})
        assert scope.cancelled_caught
        begin, at_work = time.monotonic(), set(inspector.pids)
        while at_work <= set(inspector.pids):
            assert time.monotonic() < begin + 2, "the audit goes on"
            await asyncio.sleep(0.05)

    converse(tmp_path, conversation)
