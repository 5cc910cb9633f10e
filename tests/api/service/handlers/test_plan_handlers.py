"""The plans: tests of api/service/handlers/plan_handlers.py."""

import http.client
import json
import time
from pathlib import Path

import pytest
from fastapi import Request

from api.client import workload_document
from api.doctor import make_toy_problem
from api.service.handlers import plan_handlers
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import QUICK, request


def test_streams_are_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a stream says something now and then while nothing happens, changes that are no events included."""
    monkeypatch.setattr(plan_handlers, "PAUSE_S", 0.1)
    monkeypatch.setattr(plan_handlers, "PING_S", 0.6)
    with serving(tmp_path, num_workers=0) as running:
        here = running.client().submit(make_toy_problem(), limits=QUICK)["links"]["self"]
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        connection.request("GET", f"{here}/events")
        response = connection.getresponse()
        lines = [response.readline() for _ in range(4)]
        assert lines[:2] == [b"id: 1\n", b"event: queued\n"]
        begin = time.monotonic()
        for _ in range(4):
            request(running, "POST", f"{here}:pin")
            assert (response.readline(), response.readline()) == (b": ping\n", b"\n")
        assert time.monotonic() - begin > 1.5
        connection.close()


@pytest.mark.parametrize(
    ("preference", "seconds"),
    [
        ("wait=7", 7),
        ("respond-async, WAIT=7", 7),
        ("wait=99999", 60),
        ("wait=" + "9" * 18, 60),
        ("wait=-7", 0),
        ("wait=7.5", 0),
        ("wait=" + "9" * 5000, 0),
        ("", 0),
    ],
)
def test_a_client_that_would_wait_for_hours_waits(preference: str, seconds: int):
    """Tests that a long wait becomes the longest, in letters of either case, not an answer at once; others do not."""
    asked = Request({"type": "http", "headers": [(b"prefer", preference.encode())]})
    assert plan_handlers._waiting_s(asked, 60) == seconds


@pytest.mark.parametrize("limits", [{"method": "best"}, {"solver": "HiGHS"}, {"method": "cp-sat", "solver": "CBC"}])
def test_no_other_method_is_taken(running: Running, limits: dict[str, str]):
    """Tests that a method that there is not, or a solver without the method that asks it, is refused at its place."""
    body = {"workload": workload_document(make_toy_problem()), "limits": limits}
    status, _, text = request(running, "POST", "/v1/plans", body)
    assert status == 422
    assert json.loads(text)["errors"][0]["pointer"].startswith("/limits")
