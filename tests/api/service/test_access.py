"""Who asks, and what of their jobs they ask about: tests of api/service/access.py."""

from pathlib import Path

import pytest

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from planner.progress import Limits
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import QUICK, request


def test_nothing_is_found_politely(running: Running):
    """Tests that unknown paths, ids and methods are problems with the right status."""
    for method, path, expected in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/plans/nonsense", 404),
        ("GET", f"/v1/plans/{'0' * 32}", 404),
        ("PUT", "/v1/plans", 405),
        ("GET", "/v1/plans?limit=-1", 422),
        ("GET", "/v1/demo-profiles/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/static/..%2fapp.py", 404),
    ):
        status, headers, text = request(running, method, path)
        assert (status, headers["content-type"]) == (expected, "application/problem+json"), (path, text)


def test_keys_scopes_and_tenants(tmp_path: Path):
    """Tests that keys are needed, that scopes, expiry and revocation hold, and that tenants do not see each other."""
    with serving(tmp_path, needs_keys=True, num_workers=1) as running:
        assert request(running, "GET", "/v1/plans")[0] == 401
        assert request(running, "GET", "/v1/plans", headers={"Authorization": "Bearer pp_nonsense"})[0] == 401
        ours, theirs = running.client(running.key("ours")), running.client(running.key("theirs"))
        job = ours.plan(make_toy_problem(), limits=QUICK)
        assert [found["id"] for found in ours.jobs()] == [job["id"]]
        assert theirs.jobs() == []
        for call in (theirs.job, theirs.stop, theirs.delete, theirs.what_if):
            with pytest.raises(ServerError) as refusal:
                call(job["id"])
            assert refusal.value.status == 404
        assert theirs.plan(make_toy_problem(), limits=QUICK)["id"] != job["id"]
        check_limits_of_keys(running)


def check_limits_of_keys(running: Running) -> None:
    """Scopes, expiry, revocation and the number of jobs."""
    reader = running.client(running.key("ours", scopes=["plans:read"]))
    with pytest.raises(ServerError) as refusal:
        reader.submit(make_toy_problem())
    assert (refusal.value.status, refusal.value.code) == (403, "scope_missing")
    with pytest.raises(ServerError) as refusal:
        running.client(running.key("ours", expires_in_s=1e-9)).jobs()
    assert refusal.value.status == 401
    key, text = running.service.keys.create("ours")
    assert running.client(text).jobs()
    assert running.service.keys.revoke(key.id)
    with pytest.raises(ServerError):
        running.client(text).jobs()
    busy = Client(running.url, key=running.key("busy", concurrent_jobs=1), num_tries=1)
    job = busy.submit(large_problem(), limits=Limits(time_limit_s=300.0, threads=1))
    with pytest.raises(ServerError) as refusal:
        busy.submit(large_problem(), limits=Limits(time_limit_s=301.0, threads=1))
    assert (refusal.value.status, refusal.value.code) == (429, "too_many_jobs")
    busy.delete(job["id"])
