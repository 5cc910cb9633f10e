"""Checks and drawings for requests: tests of api/service/inspector.py."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.doctor import make_toy_problem
from api.jobs.workers.solver_handle import Child, ProcessLimits
from api.settings import ClientLimits
from planner.document import render_plan
from planner.planning import make_plan
from tests.api.service.handlers.test_picture_handlers import QUICK
from tests.api.service.servers import serving
from tests.api.service.test_fair_queue import Site, run, settle
from tests.api.service.test_http import request


@pytest.fixture(scope="module")
def plan() -> Any:
    """A plan document that brings its question along."""
    return json.loads(render_plan(make_plan(make_toy_problem(), limits=QUICK)))


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


@pytest.mark.parametrize("is_given", [False, True], ids=["while it waits", "as it gets its slot"])
def test_a_slot_is_never_lost(is_given: bool):
    """Tests that who is given up while it waits, or as a slot becomes its own, leaves it to others."""

    async def work() -> None:
        site = Site(num_slots=1)
        site.come("a", "b", "c")
        await settle()
        if is_given:
            site.ends["a"].pop().set()
            while site.queue._waiting.get("b"):
                await asyncio.sleep(0)
        site.tasks[1].cancel()
        await settle()
        if not is_given:
            await site.end_one("a")
        assert site.begun[-1] == "c"
        await site.end_one("c")
        assert (site.queue._num_free, site.queue._num_present, site.queue._waiting) == (1, {}, {})

    run(work())
