"""A typed client of the service, on the standard library alone: tests of api/client.py."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from tests.own_time import tell_time


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
    tell_time(monkeypatch, "api.client", sleep=lambda _: None)
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
