"""What agents do with the tools, by the protocol's own client."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.api.agents.tool_worlds import CONFIGURATION, LONG, call, converse, refused

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


def test_answers_are_whole_schemas():
    """Tests that all that a tool's answer refers to stands in its own schema, for clients that check answers."""
    from jsonschema import Draft202012Validator

    from api.agents.tools import make_tools

    for tool in make_tools():
        Draft202012Validator.check_schema(tool.answer)
        told = json.dumps(tool.answer)
        assert set(re.findall(r'"#/([^"]*)/\w+"', told)) <= {"$defs"}
        assert set(re.findall(r'"#/\$defs/(\w+)"', told)) == set(tool.answer.get("$defs", ()))


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


def _everything() -> Any:
    from api.jobs.job import Search

    return Search()


REFUSALS = [
    ("plan", {"demo": "vgg16-ethernet", "limits": {"gap": 2}}, "limits.gap", 2, "below 1"),
    ("plan", {"demo": "vgg17"}, "demo", "vgg17", "vgg16-ethernet"),
    ("plan", {"workload_id": "0" * 32}, "workload_id", "0" * 32, "call audit again"),
    ("plan", {}, "workload_id", None, "give one of"),
    ("plan", {"demo": "vgg16-ethernet", "workload_id": "x"}, "workload_id", "x", "give one of"),
    ("plan", {"demo": "vgg16-ethernet", "rounds": 3}, "rounds", 3, "not a known field"),
    ("plan", {"demo": "vgg16-ethernet", "options": {"max_replicas": 0}}, "options.max_replicas", 0, "1"),
    ("plan", {"workload": {"format": "x"}}, "workload.format", "x", "pipeline-workload"),
    ("audit", {"program": "megatron", "model": "lama"}, "model", "lama", "llama3-8b"),
    ("audit", {"program": "megatron", "model": "llama3-8b", "pp": 0}, "pp", 0, "1 or more"),
    ("audit", {"program": "vllm"}, "program", "vllm", "megatron"),
    ("verify", {}, "plan_id", None, "give one of"),
    ("verify", {"plan": {"format": "x"}}, "plan.format", "x", "format"),
    ("plan_status", {"plan_id": "../keys"}, "plan_id", "../keys", "the id that plan answered"),
    ("get_document", {"plan_id": "0" * 32, "form": "xml"}, "form", "xml", "report"),
]


def test_refusals_say_field_value_and_remedy(tmp_path: Path):
    """Tests that what cannot be done is an error whose first entry names field, value and remedy."""

    async def conversation(client: Client, app: FastAPI) -> None:
        problems = [await refused(client, tool, **arguments) for tool, arguments, *_ in REFUSALS]
        found = [(problem["errors"][0]["field"], problem["errors"][0]["value"]) for problem in problems]
        expected = [(field, value) for _, _, field, value, _ in REFUSALS]
        assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []
        told = [problem["errors"][0]["remedy"] for problem in problems]
        assert [text for text, (*_, remedy) in zip(told, REFUSALS, strict=True) if remedy not in text] == []
        assert (await refused(client, "plan_status", plan_id="0" * 32))["code"] == "not_found"
        assert (await refused(client, "dance"))["code"] == "not_found"
        names = [each["name"] for each in (await call(client, "list_demos"))["demo_profiles"]]
        assert "vgg16-ethernet" in names

    converse(tmp_path, conversation)


def test_a_plan_that_cannot_be_is_an_error(tmp_path: Path):
    """Tests that a question that no plan answers ends with the proof's words, not with a plan."""

    async def conversation(client: Client, app: FastAPI) -> None:
        pinned = {"max_stages_per_device": 1, "idle_devices": False, "max_replicas": 1}
        cluster = {"name": "one", "devices": [{"name": "gpu0", "type": "toy", "memory_bytes": 1}], "links": []}
        cost = {"device_type": "toy", "forward_ns": 10, "input_grad_ns": 10, "weight_grad_ns": 10}
        layer = {"name": "layer", "costs": [cost], "parameter_bytes": 10, "state_bytes": 40}
        profile = {"name": "toy", "microbatch_size": 1, "layers": [layer], "edges": []}
        workload = {"format": "pipeline-workload/2", "profile": profile, "cluster": cluster, "num_microbatches": 2}
        problem = await refused(client, "plan", workload=workload, options=pinned, limits={"max_rounds": 1})
        assert problem["code"] == "infeasible"
        assert "use a larger device" in problem["detail"]

    converse(tmp_path, conversation)
