"""One plan that several workers of a service search for, as a client asks for it and sees it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.client import workload_document
from api.doctor import make_toy_problem
from planner.document import parse_plan
from planner.progress import Limits
from planner.verify import verify
from profiles.load import load_workload
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import check_job, request
from tests.api.worlds import Shell, make_problem


@pytest.mark.slow
def test_two_workers_search_for_one_plan(tmp_path: Path):
    """Tests that the story names the second island, /metrics counts it, and one verified plan is the answer."""
    with serving(tmp_path, num_workers=2) as running:
        client = running.client()
        limits = Limits(time_limit_s=600, patience_s=600, threads=1)
        job = client.submit(large_problem(), limits=limits, islands=2)
        for event in client.follow(job["id"]):
            if event["kind"] == "log":
                break
        assert event["data"] == {"message": "island 1 of 1 beside the first searches too", "island": 1}
        assert b"pipeplan_islands 1.0\n" in request(running, "GET", "/metrics")[2]
        client.stop(job["id"])
        status, _, text = request(running, "GET", f"/v1/plans/{job['id']}", headers={"Prefer": "wait=60"})
        done = json.loads(text)
        assert (status, done["state"], done["stopped_by"], done["islands"]) == (200, "succeeded", "user", 2)
        check_job(done)
        assert verify(large_problem(), client.fetch_plan(job["id"])).passed
        assert b"pipeplan_islands 0.0\n" in request(running, "GET", "/metrics")[2]


def test_the_command_line_asks_for_islands(shell: Shell, running: Running):
    """Tests that --islands reaches the service, where one worker that is alone does all of it."""
    command = ("plan", "workload.json", "--time-limit", "3", "--islands", "3", "--quiet", "--server", running.url)
    outcome = shell.run(*command)
    assert outcome.code == 0, outcome.err
    assert verify(make_problem(load_workload("workload.json")), parse_plan(outcome.out)).passed
    latest = json.loads(request(running, "GET", "/v1/plans?limit=1")[2])["plans"][0]
    assert (latest["islands"], latest["state"]) == (3, "succeeded")


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"islands": 2, "limits": {"max_rounds": 1}}, "invalid", "islands and limits.max_rounds are both given"),
        ({"islands": 2, "options": {"objective": "cost"}}, "invalid", "objective = cost, which allows one worker"),
        ({"islands": 17}, "limit", "islands is above this service's limit of 16"),
        ({"islands": 0}, "invalid", "islands is out of range; give an integer from 1"),
        ({"islands": 1.5}, "invalid", "islands"),
    ],
)
def test_what_cannot_be_shared_is_refused(running: Running, more: dict[str, Any], code: str, words: str):
    """Tests that each request that islands do not go with is refused with what to do instead."""
    problem = make_toy_problem()
    priced = tuple(replace(device, price_per_hour=1.0) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=priced))
    status, _, text = request(running, "POST", "/v1/plans", {"workload": workload_document(problem), **more})
    (error,) = json.loads(text)["errors"]
    assert (status, error["code"]) == (422, code), error
    assert words in error["detail"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--islands", "2"), "--islands: are workers of a service (pipeplan serve); add --server URL"),
        (
            ("--islands", "2", "--server", "http://localhost:1", "--max-rounds", "1"),
            "result depends on idle workers",
        ),
    ],
)
def test_the_command_line_refuses_the_rest(shell: Shell, options: tuple[str, ...], message: str):
    """Tests that islands without a service, or with a deterministic limit, are bad usage."""
    outcome = shell.run("plan", "workload.json", *options)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
