"""Views, traces and reports: made once, by processes that are replaced between requests, and kept."""

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from api.client import ServerError
from api.doctor import make_toy_problem
from api.settings import ClientLimits
from planner.progress import Limits
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request

QUICK = Limits(time_limit_s=30.0, max_rounds=1)


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
