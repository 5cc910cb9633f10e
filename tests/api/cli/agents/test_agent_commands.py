"""`pipeplan mcp` and `pipeplan skills`: tests of api/cli/agents/agent_commands.py."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.agents.tool_worlds import refused
from tests.test_house_rules import ROOT

if TYPE_CHECKING:
    pass


@pytest.mark.slow
def test_over_standard_input(tmp_path: Path):
    """Tests that the command gives its tools to a client that starts it, and leaves nothing behind."""
    from mcp import Client, StdioServerParameters, stdio_client

    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = StdioServerParameters(command=sys.executable, args=["-m", "api", "mcp"], env=environment)

    async def run() -> None:
        async with Client(stdio_client(command)) as client:
            assert client.server_info is not None
            assert client.server_info.name == "pipeplan"
            listed = await client.list_tools()
            assert {"audit", "plan", "verify", "explain"} <= {tool.name for tool in listed.tools}
            assert (await refused(client, "plan", demo="vgg17"))["errors"][0]["value"] == "vgg17"

    asyncio.run(run())
    assert not list(tmp_path.glob("pipeplan-*"))
