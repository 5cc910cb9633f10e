"""Runs on a Ray cluster, as `python3 ray_driver.py`: tests of planner/launch/ray_driver.py."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.launch import ray_driver
from tests.planner.launch.test_torchrun import HOSTILE


def node(name: str, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "NodeID": f"id-{name}", "NodeManagerHostname": name, "NodeManagerAddress": f"10.0.0.{name}"}


def test_hosts_are_nodes_by_name_or_address():
    """Tests that nodes are found every way in the plan's order, and that a lost or unknown one is named."""
    nodes = [node("1"), node("2"), node("3", alive=False)]
    assert [found["NodeID"] for found in ray_driver.find_nodes(["2", "10.0.0.1", "id-1"], nodes)] == [
        "id-2",
        "id-1",
        "id-1",
    ]
    with pytest.raises(ValueError, match="host '3' is not a node of this Ray cluster; it has 1, 2: give --host 3=NAME"):
        ray_driver.find_nodes(["1", "3"], nodes)


def test_a_worker_runs_its_hosts_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that the agent gets plan, master and host, that the user's words stay, and that its failure is Ray's."""
    context = SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "id-1"))
    monkeypatch.setitem(sys.modules, "ray", context)
    script = (
        "import json, os, sys\n"
        f"with open(sys.argv[1]) as plan, open({str(tmp_path / 'said')!r}, 'w') as said:\n"
        "    json.dump([sys.argv[1:], os.environ['PLAN_NODE'], plan.read()], said)\n"
        "sys.exit(int('fail' in sys.argv))\n"
    )
    agent = [sys.executable, "-c", script, "{folder}/plan.json", "{master}", "--", "{folder}", HOSTILE]
    job = {
        "nodes": ["id-0", "id-1"],
        "agents": [[], agent],
        "documents": {"plan.json": "the plan"},
        "master": "10.0.0.9",
        "variable": "PLAN_NODE",
        "hosts": ["x", "y"],
        "folder": str(tmp_path / "none"),
    }
    ray_driver.run_agent(job)
    words, host, text = json.loads((tmp_path / "said").read_text())
    assert (words[1:], host, text) == (["10.0.0.9", "--", "{folder}", HOSTILE], "y", "the plan")
    assert not Path(words[0]).exists()
    with pytest.raises(RuntimeError, match="the agent of host y ended with 1"):
        ray_driver.run_agent(job | {"agents": [[], [*agent, "fail"]]})
