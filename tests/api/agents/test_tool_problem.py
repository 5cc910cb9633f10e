"""What went wrong in a tool, for the agent that called it: tests of api/agents/tool_problem.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.api.agents.tool_worlds import call, converse, refused

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp import Client


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
        assert (await refused(client, "explain", plan_id="a" * 100_000))["code"] == "invalid"
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
