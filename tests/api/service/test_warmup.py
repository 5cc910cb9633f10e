"""What comes first after a start, all at once; and what a client does when it is not answered."""

import http.client
import json
import os
import threading
import time
from pathlib import Path

import pytest

from api.client import ServerError
from api.doctor import make_toy_problem
from api.service.handlers.route_notes import example_submission
from tests.api.service.servers import Running
from tests.api.service.site import Site

STARTS = int(os.environ.get("PIPEPLAN_STARTS", "2"))
"""How often the service is started; `make test-crash` does it twenty times."""

NUM_FIRST = 16


def wait_until_it_listens(site: Site) -> None:
    until = time.monotonic() + 120
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        try:
            connection.request("GET", "/livez")
            assert connection.getresponse().status == 200
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return
        finally:
            connection.close()


def count_open_stores(site: Site) -> int:
    """Descriptors of the service that are its SQLite file."""
    kept = Path(f"/proc/{site.processes['api'].pid}/fd")
    return sum(1 for each in kept.iterdir() if os.path.realpath(each).endswith("pipeplan.sqlite"))


def post_at_once(site: Site, path: str, bodies: list[bytes]) -> list[int]:
    """The statuses of requests that begin at the same moment."""
    barrier, statuses = threading.Barrier(len(bodies)), []

    def post(body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)
        connection.connect()
        barrier.wait()
        connection.request("POST", path, body=body, headers={"Content-Type": "application/json"})
        statuses.append(connection.getresponse().status)
        connection.close()

    threads = [threading.Thread(target=post, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@pytest.mark.parametrize("start", range(STARTS))
def test_first_posts(tmp_path: Path, start: int):
    """Tests that as soon as the service listens, sixteen first submissions at once are all taken, and open nothing."""
    site = Site(folder=tmp_path, is_forked=False)
    site.start("api")
    try:
        wait_until_it_listens(site)
        opened = count_open_stores(site)
        assert opened >= NUM_FIRST
        bodies = [json.dumps({**example_submission(), "priority": n % 3}).encode() for n in range(NUM_FIRST)]
        assert set(post_at_once(site, "/v1/plans", bodies)) <= {200, 202}
        assert count_open_stores(site) <= opened + 4  # the solver's thread, the house's, the heartbeat's
    finally:
        site.abandon()


def test_what_ifs_take_keys(running: Running):
    """Tests that a what-if asked twice with one key is one job, and that the key is refused with another body."""
    client = running.client()
    base = client.plan(make_toy_problem())
    body = {"base": base["id"], "change": {"memory_bytes": 2**20}}
    keyed = {"Idempotency-Key": f"what-if-{base['id']}"}
    first = client._json("POST", "/v1/what-if", body=body, headers=keyed)
    assert client._json("POST", "/v1/what-if", body=body, headers=keyed)["id"] == first["id"]
    with pytest.raises(ServerError) as refusal:
        client._json("POST", "/v1/what-if", body={**body, "change": {"devices": 1}}, headers=keyed)
    assert refusal.value.code == "idempotency_key_reused"
