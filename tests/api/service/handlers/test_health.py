"""What an operator sees: logs that follow a request to its solver, metrics, who works, limits of memory."""

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from api.client import Client, workload_document
from api.doctor import make_toy_problem
from planner.progress import Limits
from tests.api.forked_solvers import fork_command
from tests.api.postgres import PostgresServer
from tests.api.service.servers import Running, serving, wait_ready
from tests.api.service.test_http import request
from tests.forking import ForkedProcess
from tests.free_ports import free_port

QUICK = Limits(time_limit_s=30.0, max_rounds=1)


def command(*words: str, log: Path) -> ForkedProcess:
    """One of our commands; what it says goes to the log."""
    with log.open("ab") as file:
        return fork_command(*words, "--log-format", "json", log=file.fileno())


def lines_of(log: Path) -> list[dict[str, Any]]:
    """What was logged, in the order in which it happened; all of it is JSON."""
    return sorted(map(json.loads, log.read_text().splitlines()), key=lambda line: line["at"])


def submit_as(port: int, request_id: str) -> str:
    """A plan that was asked for under that id, when it has ended."""
    client = Client(f"http://127.0.0.1:{port}", num_tries=10)
    client.capabilities()
    body = {"workload": workload_document(make_toy_problem()), "limits": {"max_rounds": 0}}
    sent = {"X-Request-ID": request_id, "Prefer": "wait=60"}
    job = client._json("POST", "/v1/plans", body=body, headers=sent)
    while job["state"] in ("queued", "running"):
        job = client.job(job["id"], wait_s=20)
    assert job["state"] == "succeeded", job
    return str(job["id"])


def ready(port: int) -> dict[str, Any]:
    """What a service with a worker says once it is ready: its own toy plan may end after the first job."""
    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?workers=1", timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > until:
                raise
        time.sleep(0.1)


def test_a_request_is_followed_to_its_solver(tmp_path: Path, postgres: PostgresServer):
    """Tests that door, worker and solver process, on their own here, log one job under its request's id, in order."""
    url, port, metrics = postgres.fresh_database(), free_port(), free_port()
    log, secret = tmp_path / "log", "sk-not-to-be-logged"
    door = command("serve", "--port", str(port), "--database-url", url, "--data", str(tmp_path / "d"), log=log)
    worker = command("worker", "--database-url", url, "--metrics-port", str(metrics), log=log)
    try:
        job_id = submit_as(port, "ask-me.1")
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
            counted = answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/livez", timeout=10) as answer:
            assert answer.status == 200
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/plans?name={secret}", headers={"X-Request-ID": "a\tb"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-ID"])
        assert ready(port) == {"status": "ready", "workers": 1, "slots": 1}
    finally:
        for process in (door, worker):
            process.terminate()
            assert process.wait(60) == 0
    assert 'pipeplan_jobs_ended_total{state="succeeded",stopped_by="rounds"} 1' in counted
    assert "pipeplan_solve_seconds_count 1" in counted
    lines = lines_of(log)
    story = [line["event"] for line in lines if line.get("job") == job_id]
    assert story == ["job stored", "job started", "solve begins", "solve ends", "job ended"]
    assert {line["request_id"] for line in lines if line.get("job") == job_id} == {"ask-me.1"}
    (pid,) = {line["pid"] for line in lines if line["event"] == "solve begins" and line.get("job") == job_id}
    assert pid not in (door.pid, worker.pid)
    requests = [line for line in lines if line["event"] == "request" and line.get("request_id") == "ask-me.1"]
    assert [(line["method"], line["route"], line["tenant"]) for line in requests] == [("POST", "/v1/plans", "local")]
    assert secret not in log.read_text()


def test_readiness_knows_the_workers(tmp_path: Path, postgres: PostgresServer):
    """Tests that readyz says how many workers live, and is 503 where fewer live than are asked for."""
    with serving(tmp_path, num_workers=0, database_url=postgres.fresh_database()) as running:
        wait_ready(running)
        assert json.loads(request(running, "GET", "/readyz")[2]) == {"status": "ready", "workers": 0, "slots": 0}
        status, _, text = request(running, "GET", "/readyz?workers=1")
        assert (status, json.loads(text)["code"]) == (503, "too_few_workers")
        running.service.registry.beat("somewhere", num_slots=3)
        assert json.loads(request(running, "GET", "/readyz?workers=1")[2])["slots"] == 3


def test_metrics_of_the_queue(tmp_path: Path):
    """Tests that metrics say how old the queue is, and who works on it."""
    with serving(tmp_path, num_workers=0) as running:
        assert "pipeplan_queue_age_seconds 0.0\n" in request(running, "GET", "/metrics")[2].decode()
        running.client().submit(make_toy_problem(), limits=QUICK)
        time.sleep(0.2)
        text = request(running, "GET", "/metrics")[2].decode()
        (age,) = re.findall(r"^pipeplan_queue_age_seconds (\S+)$", text, flags=re.MULTILINE)
        assert 0.2 <= float(age) < 60
        assert "pipeplan_workers_alive 0" in text


def test_metrics_of_the_solves(running: Running):
    """Tests that a service that solves itself counts solves, their time and gap, and lives as a worker."""
    running.client().plan(make_toy_problem(), limits=Limits(max_rounds=1, seed=811))
    text = request(running, "GET", "/metrics")[2].decode()
    for line in ("pipeplan_workers_alive 1", "pipeplan_worker_slots 1", "# TYPE pipeplan_gap histogram"):
        assert line in text
    (count,) = re.findall(r"^pipeplan_solve_seconds_count (\d+)\.0$", text, flags=re.MULTILINE)
    assert int(count) >= 1
