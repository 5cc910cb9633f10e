"""The tools over the Model Context Protocol: their list, their calls, and how searches go."""

import json
import time
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from api.agents.kept_workloads import KeptWorkloads
from api.agents.service_calls import Hear, Session, connect
from api.agents.tool_problem import ToolProblem
from api.agents.tools import Tool, make_tools
from api.client import JobDocument
from api.formatting import render_ms, render_percent
from planner.release import RELEASE

Context = ServerRequestContext[Any, Any]

_INSTRUCTIONS = (
    "Plans pipeline-parallel training. From a configuration: audit, then plan with its workload_id, then verify. "
    "Times are nanoseconds; gap is (time - lower bound) / time. Every plan has passed the verifier."
)


def make_mcp_server(app: FastAPI) -> "Server[Any]":
    """A server whose tools ask the application."""
    http, workloads = connect(app), KeptWorkloads()
    tools = {tool.name: tool for tool in make_tools()}
    listed = ListToolsResult(tools=[_listed(tool) for tool in tools.values()])

    async def list_tools(context: Context, asked: PaginatedRequestParams | None) -> ListToolsResult:
        del context, asked
        return listed

    async def call_tool(context: Context, asked: CallToolRequestParams) -> CallToolResult:
        arguments = asked.arguments or {}
        session = Session(http=http, workloads=workloads, key=_key(context), hear=_reporter(context))
        try:
            tool = tools.get(asked.name)
            if tool is None:
                raise ToolProblem("not_found", detail=f"there is no such tool; call one of {', '.join(tools)}")
            found = await tool.call(session, tool.read(arguments))
        except ToolProblem as problem:
            return _result(problem.document(arguments), is_error=True)
        return _result(found)

    return Server(
        "pipeplan", version=RELEASE, instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.answer,
        annotations=ToolAnnotations(read_only_hint=not tool.searches, destructive_hint=False, open_world_hint=False),
    )


def _result(document: Mapping[str, Any], *, is_error: bool = False) -> CallToolResult:
    """The document as data, and as text for clients that read nothing else."""
    text = json.dumps(document, ensure_ascii=False)
    content = [TextContent(type="text", text=text)]
    return CallToolResult(content=list(content), structured_content=dict(document), is_error=is_error)


def _key(context: Context) -> str | None:
    """What the call brought to show who it is; over standard input nobody asks."""
    headers: Mapping[str, str] = getattr(context.request, "headers", {})
    return headers.get("authorization")


def _reporter(context: Context) -> Hear:
    """Tells the client the best plan and the bound so far; progress is in seconds."""
    begin = time.monotonic()

    async def hear(job: JobDocument) -> None:
        await context.session.report_progress(round(time.monotonic() - begin, 3), message=render_state(job))

    return hear


def render_state(job: JobDocument) -> str:
    """How a search goes, in a line; with the plan's id, by which it is found again should the client not wait."""
    best, bound, gap = job["incumbent_ns"], job["lower_bound_ns"], job["gap"]
    parts = [f"plan {job['id']}", job["phase"] or job["state"]]
    parts += [] if best is None else [f"best {render_ms(best)} ms"]
    parts += [] if bound is None else [f"lower bound {render_ms(bound)} ms"]
    return ", ".join(parts + ([] if gap is None else [f"gap {render_percent(gap)}"]))
