"""Views, traces and reports: made once, by processes that are replaced between requests, and kept."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from api.client import ServerError
from api.doctor import make_toy_problem
from api.jobs.workers.solver_handle import Child, ProcessLimits
from api.settings import ClientLimits
from planner.document import render_plan
from planner.planning import make_plan
from planner.progress import Limits
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request

QUICK = Limits(time_limit_s=30.0, max_rounds=1)


@pytest.fixture(scope="module")
def plan() -> Any:
    """A plan document that brings its question along."""
    return json.loads(render_plan(make_plan(make_toy_problem(), limits=QUICK)))


def at_once(running: Running, paths: list[str]) -> list[tuple[int, bytes]]:
    """Status and body of requests that come at the same time."""
    answers: list[tuple[int, bytes]] = []

    def get(path: str) -> None:
        status, _, body = request(running, "GET", path)
        answers.append((status, body))

    threads = [threading.Thread(target=get, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_view_is_made_once_however_many_ask(tmp_path: Path):
    """Tests that thirty views of a plan at once are one drawing, none is sent away, and the next service has it."""
    with serving(tmp_path, traffic=ClientLimits(inspections=3), num_helpers=2) as running:
        view = running.client().plan(make_toy_problem(), limits=QUICK)["links"]["view"]
        before = running.service.gallery.num_made
        answers = at_once(running, [view] * 30)
        assert {status for status, _ in answers} == {200}
        assert len({body for _, body in answers}) == 1
        assert running.service.gallery.num_made == before + 1
    with serving(tmp_path, num_workers=0) as running:
        assert request(running, "GET", view)[2] == answers[0][1]
        assert running.service.gallery.num_made == 0


def test_a_picture_of_a_finished_plan_is_kept(running: Running):
    """Tests that the page's picture is made once, and anew for another baseline."""
    job = running.client().plan(make_toy_problem(), limits=Limits(max_rounds=1, seed=904))
    picture, before = f"{job['links']['self']}/picture", running.service.gallery.num_made
    first, again = request(running, "GET", picture), request(running, "GET", picture)
    assert (first[0], first[2]) == (200, again[2])
    assert running.service.gallery.num_made == before + 1
    name = next(row["name"] for row in json.loads(first[2])["plans"][0]["baselines"] if row["makespanNs"])
    beside = request(running, "GET", f"{picture}?baseline={quote(name)}")
    assert (beside[0], running.service.gallery.num_made) == (200, before + 2)


def test_what_is_drawn_beside_counts(running: Running):
    """Tests that a view beside another plan is another drawing than the view alone."""
    client = running.client()
    one, two = (client.plan(make_toy_problem(), limits=Limits(max_rounds=1, seed=seed)) for seed in (901, 902))
    alone = request(running, "GET", one["links"]["view"])
    beside = request(running, "GET", f"{one['links']['view']}?against={two['id']}")
    assert (alone[0], beside[0]) == (200, 200)
    assert alone[2] != beside[2]
    assert alone[1]["etag"] != beside[1]["etag"]


def test_helpers_are_replaced_between_requests(tmp_path: Path, plan: Any):
    """Tests that a process that has done enough is followed by another, and that no client minds one that is killed."""
    limits = ProcessLimits(jobs_per_process=2, num_threads=1)
    with serving(tmp_path, helper=limits, num_helpers=1, num_workers=0) as running:
        inspector = running.service.inspector
        seen = set[int]()
        for number in range(4):
            assert request(running, "POST", "/v1/verifications", {"plan": plan})[0] == 200
            (pid,) = inspector.pids
            seen.add(pid)
            if number == 2:
                os.kill(pid, signal.SIGKILL)
        assert len(seen) == 3


def stop_loading(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """From now on processes that are started never load; the answer is a list of those that try."""
    started: list[Child] = []

    def open_nothing(child: Child) -> Any:
        started.append(child)
        return subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(Child, "_open", open_nothing)
    return started


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_nobody_waits_for_a_helper_that_was_killed(
    tmp_path: Path, plan: Any, is_busy: bool, monkeypatch: pytest.MonkeyPatch
):
    """Tests that two helpers are loaded once one has worked; that when one is killed, with an order or without, orders
    go to the other while a new one loads, were it for ever, and that the new one is started at once."""
    with serving(tmp_path, num_helpers=2, num_workers=0) as running:
        inspector = running.service.inspector
        assert request(running, "POST", "/v1/verifications", {"plan": plan})[0] == 200
        wait_until(lambda: [child.is_loaded for child in inspector._idle] == [True, True])
        started, victim = stop_loading(monkeypatch), inspector._idle[-1].pid
        assert victim is not None
        answers: list[int] = []
        asking = threading.Thread(
            target=lambda: answers.append(request(running, "POST", "/v1/verifications", {"plan": plan})[0])
        )
        if is_busy:
            os.kill(victim, signal.SIGSTOP)
            asking.start()
            wait_until(lambda: len(inspector._idle) == 1)
        os.kill(victim, signal.SIGKILL)
        if not is_busy:
            asking.start()
        asking.join(60)
        assert answers == [200]
        for _ in range(3):
            assert request(running, "POST", "/v1/verifications", {"plan": plan})[0] == 200
        wait_until(lambda: bool(started))
        assert victim not in inspector.pids
        assert len(started) == 1


def test_too_many_checks_are_sent_away(tmp_path: Path, plan: Any):
    """Tests that beyond the places for checks the answer is 503 with a time, and other requests are answered."""
    with serving(tmp_path, traffic=ClientLimits(inspections=1), num_helpers=1, num_workers=0) as running:
        running.service.inspector._queue._num_present["other"] = 2
        status, headers, text = request(running, "POST", "/v1/verifications", {"plan": plan})
        assert (status, json.loads(text)["code"], headers["retry-after"]) == (503, "busy", "2")
        assert request(running, "GET", "/v1/plans")[0] == 200


def test_streams_of_a_tenant_have_a_limit(tmp_path: Path):
    """Tests that of many streams opened at once as many begin as a tenant may have; the others get a problem."""
    with serving(tmp_path, traffic=ClientLimits(tenant_streams=3), num_workers=0) as running:
        job: Any = running.client().submit(make_toy_problem(), limits=QUICK)
        statuses: list[int] = []

        def follow() -> None:
            try:
                for _ in running.client().follow(job["id"]):
                    statuses.append(200)
                    time.sleep(1.0)
                    return
            except ServerError as error:
                statuses.append(error.status)

        threads = [threading.Thread(target=follow) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 3 + [429] * 9
        until = time.monotonic() + 30
        while len(running.service.streams):
            assert time.monotonic() < until, "places are not given back"
            time.sleep(0.05)


@pytest.mark.parametrize("what", ["trace", "report", "export/torch"])
def test_a_deleted_plan_takes_its_drawings_along(running: Running, what: str):
    """Tests that what was kept of a plan cannot be fetched when the plan is gone."""
    client = running.client()
    job = client.plan(make_toy_problem(), limits=Limits(max_rounds=1, seed=903))
    here = job["links"]["self"]
    assert request(running, "GET", f"{here}/{what}")[0] in (200, 422)
    client.delete(job["id"])
    assert request(running, "GET", f"{here}/{what}")[0] == 404
