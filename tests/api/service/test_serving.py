"""The command line against a service: plan and doctor with --server, keys, and a real `serve` process and its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from api.client import Client, ServerError
from api.service.serving import GRACE_S
from planner.document import parse_plan
from planner.verify import verify
from profiles.load import load_workload
from tests.api.forked_solvers import fork_command
from tests.api.service.servers import Running
from tests.api.worlds import Shell, make_problem
from tests.forking import ForkedProcess
from tests.free_ports import free_port
from tests.own_time import tell_time

ROOT = Path(__file__).resolve().parents[3]
PLAN = ("plan", "workload.json", "--time-limit", "20", "--max-rounds", "1", "--seed", "5")


def test_plans_are_the_same_here_and_there(shell: Shell, running: Running):
    """Tests that with a deterministic limit the plan of the service is, byte for byte, the one made here."""
    here, there = shell.run(*PLAN, "--quiet"), shell.run(*PLAN, "--quiet", "--server", running.url)
    assert (here.code, there.code) == (0, 0), there.err
    assert here.out == there.out
    assert verify(make_problem(load_workload("workload.json")), parse_plan(there.out)).passed


def test_progress_of_a_remote_run(shell: Shell, running: Running):
    """Tests that with --json a remote run says what a local one says: progress, then done."""
    outcome = shell.run(*PLAN, "--json", "-o", "p.json", "--server", running.url)
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in outcome.err.splitlines()]
    assert events[-1]["event"] == "done"
    assert events[-1]["verdict_passed"] is True


def test_doctor_looks_at_a_server(shell: Shell, running: Running):
    """Tests that the service is said to live, to be ready and to know us, for people and for programs."""
    outcome = shell.run("doctor", "--server", running.url)
    assert outcome.code == 0, outcome.err
    checks = json.loads(shell.run("doctor", "--json", "--server", running.url).out)
    assert [check["is_well"] for check in checks.values()] == [True, True, True]
    assert all(what in outcome.out for what in checks)


def test_servers_that_are_not_there(shell: Shell, running: Running, monkeypatch: pytest.MonkeyPatch):
    """Tests that exit code 7 means the server, 2 the question, 3 that no plan can exist there either."""
    tell_time(monkeypatch, "api.client", sleep=lambda _: None)
    gone = shell.run(*PLAN, "--server", f"http://127.0.0.1:{free_port()}")
    assert (gone.code, gone.err.count("\n")) == (7, 1)
    assert shell.run(*PLAN, "--server", "gopher://x").code == 2
    workload = json.loads((shell.folder / "workload.json").read_text())
    for device in workload["cluster"]["devices"]:
        device["memory_bytes"] = 1000
    shell.write("small.json", json.dumps(workload))
    small = shell.run("plan", "small.json", "--time-limit", "5", "--server", running.url)
    assert small.code == 3, small.err
    assert "no plan can exist" in small.err


def start(
    folder: Path, *more: str, is_forked: bool = False
) -> tuple["subprocess.Popen[bytes] | ForkedProcess", Client]:
    """A service process that answers."""
    port = free_port()
    words = ["serve", "--port", str(port), "--data", str(folder / "data"), *more]
    process: subprocess.Popen[bytes] | ForkedProcess
    if is_forked:
        process = fork_command(*words)
    else:
        process = subprocess.Popen([sys.executable, "-m", "api", *words], cwd=ROOT, start_new_session=True)
    client = Client(f"http://127.0.0.1:{port}", num_tries=8)
    until = time.monotonic() + 60
    while True:
        try:
            client.capabilities()
        except ServerError:
            assert time.monotonic() < until
            assert process.poll() is None
        else:
            return process, client


def large_question() -> Any:
    """A question whose search goes on for as long as it may."""
    from tests.api.jobs.workers.test_pool import large_problem

    return large_problem()


def test_sigterm_loses_nothing(tmp_path: Path):
    """Tests that SIGTERM ends a solving service within its grace, with code 0, and its plan is there afterwards."""
    from planner.progress import Limits

    process, client = start(tmp_path)
    job = client.submit(large_question(), limits=Limits(time_limit_s=500.0, patience_s=500.0, threads=1))
    for event in client.follow(job["id"]):
        if event["kind"] == "incumbent":
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(GRACE_S) == 0
    process, client = start(tmp_path, is_forked=True)
    again = client.job(job["id"])
    assert again["incumbent_ns"] is not None
    client.stop(job["id"])
    done = client.job(job["id"], wait_s=60)
    assert done["state"] == "succeeded"
    assert (done["incumbent_ns"] or 0) <= (again["incumbent_ns"] or 0)
    assert verify(large_question(), client.fetch_plan(job["id"])).passed
    process.terminate()
    assert process.wait(60) == 0
    assert os.path.exists(tmp_path / "data" / "pipeplan.sqlite")
