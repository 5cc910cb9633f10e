"""What comes first after a start, all at once; and what a client does when it is not answered."""

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.service.openapi import example_submission
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


class Flaky(BaseHTTPRequestHandler):
    """Hangs up, fails, is busy, and then answers; it notes the keys that it was sent."""

    seen: list[tuple[str, str | None]]
    troubles: list[int]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.answer(b'{"id": "x"}')

    def do_DELETE(self) -> None:
        self.answer(b"", last=404)

    def answer(self, body: bytes, *, last: int = 200) -> None:
        self.seen.append((self.command, self.headers.get("Idempotency-Key")))
        status = self.troubles.pop(0) if self.troubles else last
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def flaky() -> Iterator[ThreadingHTTPServer]:
    Flaky.seen, Flaky.troubles = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_client_asks_again(flaky: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch):
    """Tests that after a broken connection, a failure and a refusal for now the same request goes out, same key."""
    monkeypatch.setattr("api.client.time.sleep", lambda _: None)
    client = Client(f"http://127.0.0.1:{flaky.server_port}")
    for act in (lambda: client.submit(make_toy_problem()), lambda: client.what_if("x", devices=1)):
        Flaky.seen, Flaky.troubles = [], [0, 500, 503]
        assert act()["id"] == "x"
        assert len(Flaky.seen) == 4
        assert len({key for _, key in Flaky.seen}) == 1
        assert Flaky.seen[0][1]
    Flaky.seen, Flaky.troubles = [], [0]
    client.delete("x")  # the first try did it, so the second finds nothing
    assert len(Flaky.seen) == 2
    Flaky.seen, Flaky.troubles = [], [422, 200]
    with pytest.raises(ServerError):
        client.submit(make_toy_problem())
    assert len(Flaky.seen) == 1


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
