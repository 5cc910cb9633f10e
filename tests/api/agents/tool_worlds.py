"""Tools of a service in the test's own process, and what agents say to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp import Client

CONFIGURATION = {
    "program": "megatron",
    "file": "train.sh",
    "text": "torchrun pretrain_gpt.py --pipeline-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 4 --seq-length 1024 --bf16\n",
    "config": {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    },
    "gpu": "h100",
    "devices": 2,
    "time_limit_s": 0.5,
}
"""A launch script, and what it leaves out."""

LONG = {"demo": "resnext50-tight-memory", "limits": {"time_limit_s": 600, "threads": 1}}
"""A question that is searched for until somebody stops it."""

Conversation = Callable[["Client", "FastAPI"], Awaitable[None]]


def converse(folder: Path, conversation: Conversation) -> None:
    """Hold a conversation with a service that lives as long."""
    from mcp import Client  # every process collects all tests: what takes long to load waits for the first of these

    from api.agents.mcp_server import make_mcp_server
    from api.service.app import make_app
    from api.settings import Settings
    from tests.api.service.servers import PATIENCE

    async def run() -> None:
        app = make_app(Settings(data=folder, needs_keys=False, patience=PATIENCE, inspection_s=600.0))
        async with app.router.lifespan_context(app), Client(make_mcp_server(app)) as client:
            await conversation(client, app)

    asyncio.run(run())


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, which the client has held against the tool's schema."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The problem of a call that is refused."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is not None
    return result.structured_content
