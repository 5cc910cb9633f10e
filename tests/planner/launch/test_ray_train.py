"""Jobs for Ray as data, and what the driver does beside Ray; `make launchers` runs them on a Ray of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from planner.launch.job_commands import Submitted, cancel_command, logs_command, status_command
from planner.launch.launch_job import LaunchSubmission
from planner.launch.manifest_patch import ManifestPatch
from planner.launch.ray_train import PLAN_PATH, RayNeeds, describe_ray_job, find_ray_number, render_ray
from tests.planner.launch.test_torchrun import make_job


def submission(*patches: Any, needs: RayNeeds | None = None, **changes: Any) -> LaunchSubmission:
    job = make_job(changes.pop("placement", "2 0 3"), **({"plan_at": PLAN_PATH} | changes))
    given = [ManifestPatch(source="p", document=patch) for patch in patches]
    return render_ray(job, needs=needs or RayNeeds(), folder="/j", patches=given)


def test_a_job_has_an_agent_per_host():
    """Tests that each host has its agent, that accelerators are reserved, and that the folder is what Ray gets."""
    needs = RayNeeds(address="http://h:8265", folder="/here", with_gpus=True, max_failures=1, port=4000)
    done = submission(needs=needs, host_names={"b": "node17"})
    (command,) = done.commands
    assert command.render() == (
        "ray job submit --no-wait --address=http://h:8265 --working-dir=/j --runtime-env=/j/runtime-env.json "
        "-- python3 ray_driver.py"
    )
    job = json.loads(done.files["ray-job.json"])
    first, second = job.pop("agents")
    assert job == {
        "hosts": ["node17", "a"],
        "variable": "PLAN_NODE",
        "folder": "/here",
        "gpus_per_host": 3,
        "max_failures": 1,
    }
    assert first == [
        *("python3", "-m", "planner.execute.run.agent", "--nnodes=2", "--node-rank=0", "--nproc-per-node=2"),
        *("--master-addr={master}", "--master-port=4000", "-m", "planner.execute.enter", "{folder}/plan.json"),
        *("--sha256", "f00d", "--host", "b=node17", "--", "train.py", "--steps", "3"),
    ]
    assert "--nproc-per-node=1" in second
    assert "--standalone" in json.loads(submission(placement="2 3").files["ray-job.json"])["agents"][0]


def test_the_runtime_environment_is_patched():
    """Tests that packages and variables reach Ray, and that what Ray would not know is refused."""
    done = submission({"env_vars": {"A": "1"}}, {"pip": ["x"], "env_vars": {"B": "2"}})
    assert json.loads(done.files["runtime-env.json"]) == {"env_vars": {"A": "1", "B": "2"}, "pip": ["x"]}
    with pytest.raises(ValueError, match=r"p: a runtime environment has no field 'env_var'.*did you mean env_vars"):
        submission({"env_var": {}})
    with pytest.raises(ValueError, match=r'p\.env_vars\.A: 1 is not a string; write A: "1"'):
        submission({"env_vars": {"A": 1}})


_WORKER = """\
import os, sys, types
os.setpgid(0, 0)
context = types.SimpleNamespace(get_node_id=lambda: "id-0")
sys.modules["ray"] = types.SimpleNamespace(get_runtime_context=lambda: context)
from planner.launch import ray_driver
script = '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.rename("begun", "ended") or sys.exit(0))
open("begun", "w").close()
time.sleep(60)
'''
job = {"nodes": ["id-0"], "agents": [[sys.executable, "-c", script, "--"]], "documents": {}, "master": ""}
ray_driver.run_agent(job | {"variable": "PLAN_NODE", "hosts": ["x"], "folder": sys.argv[1]})
"""


def test_an_agent_outlives_its_worker_long_enough_to_end_its_ranks(tmp_path: Path):
    """Tests that where Ray kills a worker's whole process group, as on `ray job stop`, the agent gets SIGTERM."""
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, str(tmp_path)], cwd=Path(__file__).parents[3])
    try:
        require_soon(tmp_path / "begun")
        os.killpg(worker.pid, signal.SIGKILL)
        require_soon(tmp_path / "ended")
    finally:
        worker.kill()
        worker.wait()


def require_soon(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists()


def test_the_driver_needs_nothing_of_ours(tmp_path: Path):
    """Tests that the copy in the job's folder is a whole program: Ray's interpreter has no pipeplan."""
    (tmp_path / "ray_driver.py").write_text(submission().files["ray_driver.py"])
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import runpy; runpy.run_path('ray_driver.py'); import sys; print(*sys.modules)"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"planner", "api", "ray", "torch"} & set(done.stdout.split())


def test_verbs_and_answers():
    """Tests that Ray is asked in its own words, at its address, and that its answers are read."""
    job = Submitted(launcher="ray", name="job", number="raysubmit_1", address="http://h:8265")
    assert status_command(job, folder="/j") == ("ray", "job", "status", "--address=http://h:8265", "raysubmit_1")
    assert logs_command(job, folder="/j", follow=True)[-2:] == ("--follow", "raysubmit_1")
    assert cancel_command(job, folder="/j")[2] == "stop"
    assert find_ray_number("---\nJob 'raysubmit_1' submitted successfully\n---") == "raysubmit_1"
    assert describe_ray_job("Status for job 'raysubmit_1': RUNNING\nStatus message: ...") == "RUNNING"
    assert describe_ray_job("Job 'raysubmit_1' succeeded") == "ended: succeeded"
    assert describe_ray_job("\x1b[32mJob 'raysubmit_1' was stopped\x1b[39m") == "ended: was stopped"
    for read in (find_ray_number, describe_ray_job):
        with pytest.raises(ValueError, match=r"see `ray job list`|look at `ray job list`"):
            read("Connection refused")
