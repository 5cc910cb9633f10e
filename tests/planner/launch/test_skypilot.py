"""Tasks for SkyPilot as data and, on nodes that are played here, as scripts; `make launchers` asks SkyPilot itself."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.launch.job_commands import Submitted, cancel_command, logs_command, status_command
from planner.launch.manifest_patch import ManifestPatch
from planner.launch.skypilot import SkyNeeds, describe_sky_job, render_sky, render_task, sky_plan_path
from tests.planner.launch.test_torchrun import HOSTILE, make_job


def task(*patches: Any, needs: SkyNeeds | None = None, is_fetched: bool = False, **changes: Any) -> dict[str, Any]:
    job = make_job(changes.pop("placement", "2 0 3"), **({"plan_at": sky_plan_path("job")} | changes))
    given = [ManifestPatch(source="p", document=patch) for patch in patches]
    done = render_sky(job, needs=needs or SkyNeeds(), folder="/j", is_fetched=is_fetched, patches=given)
    (command,) = done.commands
    assert command.render() == "sky jobs launch --yes --detach-run /j/task.yaml"
    found: dict[str, Any] = yaml.safe_load(done.files["task.yaml"])
    return found


def test_a_task_has_a_node_per_host():
    """Tests that nodes, accelerators, image and plan stand where SkyPilot reads them."""
    needs = SkyNeeds(accelerators="H100", infra="aws/us-east-1", image="docker:i", workdir="/w")
    found = task(needs=needs)
    assert found.pop("run").startswith("set -eu\nhosts=(b a)\nprocesses=(2 1)\n")
    assert found == {
        "name": "job",
        "num_nodes": 2,
        "resources": {"accelerators": {"H100": 3}, "infra": "aws/us-east-1", "image_id": "docker:i"},
        "workdir": "/w",
        "file_mounts": {"/tmp/pipeplan/job/plan.json": "/j/plan.json"},
    }
    assert "file_mounts" not in task(is_fetched=True, plan_at="https://plans/1")


def test_every_node_starts_its_hosts_processes(tmp_path: Path):
    """Tests that the script, run as each node in turn, starts the agent of that node's host with words as given."""
    python = tmp_path / "py thon"
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$PLAN_NODE" "$@"\n')
    python.chmod(0o755)
    script = task(python=str(python), program=("train.py", HOSTILE, "$X"))["run"]
    said = []
    for number in range(2):
        node = {"SKYPILOT_NODE_RANK": str(number), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", script], env=node, capture_output=True, text=True, check=True)
        said.append(done.stdout.split("\0")[:-1])
    for number, (words, host, count) in enumerate(zip(said, "ba", (2, 1), strict=True)):
        assert words == [
            *(
                host,
                "-m",
                "planner.execute.run.agent",
                "--nnodes=2",
                f"--node-rank={number}",
                f"--nproc-per-node={count}",
            ),
            *("--master-addr=10.0.0.1", "--master-port=29500", "-m", "planner.execute.enter"),
            *("/tmp/pipeplan/job/plan.json", "--sha256", "f00d", "--", "train.py", HOSTILE, "$X"),
        ]


def test_a_task_is_patched():
    """Tests that fields are merged, pods within `config` by their keys, and that the plan stays where it is."""
    pod = {"spec": {"tolerations": [{"key": "a"}]}}
    found = task(
        {"resources": {"use_spot": True}, "envs": {"A": "1"}, "config": {"kubernetes": {"pod_config": pod}}},
        {"file_mounts": {"/data": "s3://bucket"}},
        needs=SkyNeeds(accelerators="H100:8"),
    )
    assert found["resources"] == {"accelerators": {"H100": 8}, "use_spot": True}
    assert set(found["file_mounts"]) == {"/data", "/tmp/pipeplan/job/plan.json"}
    assert found["config"]["kubernetes"]["pod_config"] == pod


@pytest.mark.parametrize(
    ("patch", "needs", "changes", "message"),
    [
        (None, {"accelerators": "H100:2"}, {}, "--accelerators H100:2: the plan needs 3 on a host; write H100:3"),
        (None, {"accelerators": "H100:x"}, {}, "--accelerators 'H100:x': write NAME or NAME:COUNT"),
        (None, {}, {"host_names": {"b": "n"}}, "--host: SkyPilot's nodes have no names"),
        ({"resource": {}}, {}, {}, "p: a SkyPilot task has no field 'resource'.*; did you mean resources"),
        ({"name": "x"}, {}, {}, "p.name: 'x'; use --name"),
        ({"resources": 1}, {"accelerators": "H100"}, {}, "p.resources: 1 where a mapping is"),
    ],
)
def test_what_does_not_fit_is_one_message(patch: Any, needs: Any, changes: Any, message: str):
    """Tests that too few accelerators, names of hosts and wrong patches are refused with a remedy."""
    with pytest.raises(ValueError, match=message):
        task(*([] if patch is None else [patch]), needs=SkyNeeds(**needs), **changes)


@pytest.mark.parametrize("text", ["a\nb\n", " a\nb\n", "a\n\n", "a", "\n", "é\nb\n", "a: b\n- c\n\tx\n", "a\n\nb\n"])
def test_texts_are_read_back_as_they_were(text: str):
    """Tests that blocks are written only where YAML gives them back."""
    assert yaml.safe_load(render_task({"run": text, "x": {"y": [1, None, True]}})) == {
        "run": text,
        "x": {"y": [1, None, True]},
    }


def test_verbs_are_skypilots():
    """Tests that a managed job is asked about, read and cancelled by its name."""
    job = Submitted(launcher="skypilot", name="job")
    assert status_command(job, folder="/j") == ("sky", "jobs", "queue", "--all", "--output=json")
    assert logs_command(job, folder="/j", follow=False) == ("sky", "jobs", "logs", "--name=job", "--no-follow")
    assert cancel_command(job, folder="/j") == ("sky", "jobs", "cancel", "--yes", "--name=job")


def test_the_queue_is_read():
    """Tests that the newest job of a name counts, that ends are told as such, and that other answers are refused."""
    jobs = [
        {"job_id": 3, "job_name": "job", "status": "RUNNING"},
        {"job_id": 2, "job_name": "job", "status": "FAILED"},
        {"job_id": 9, "job_name": "other", "status": "PENDING"},
    ]
    assert describe_sky_job("Fetching...\n" + json.dumps(jobs), name="job") == "RUNNING"
    assert describe_sky_job(json.dumps(jobs[1:]), name="job") == "ended: FAILED"
    assert describe_sky_job(json.dumps(jobs), name="none") == "gone: SkyPilot does not know it"
    for answer in ("no server", "[1]", "[{}]"):
        with pytest.raises(ValueError, match="which lists no jobs"):
            describe_sky_job(answer, name="job")
