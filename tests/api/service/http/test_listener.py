"""Connections that send half a request, or nothing: others are answered all the same, and every answer is a problem."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from api.service.handlers.route_notes import example_submission
from api.service.http.listener import BURST, LEAST_S, WaitingConnections, raise_file_limit
from api.settings import ClientLimits
from tests.api.service.http.test_request_body import post, send
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request

HALF_OPEN = int(os.environ.get("PIPEPLAN_HALF_OPEN", "2000"))
"""Connections that are held half-open."""

HELD_S = float(os.environ.get("PIPEPLAN_HELD_S", "1"))
"""For how long; `make test-crash` takes a minute."""

WHOLE_S = 60.0
"""Held as long as this, connections meet their deadlines several times over."""

ANSWER_S = 1.0
"""Within which everybody else is answered: 99 of 100 while connections come again for a minute, and half of a few."""

HALF_HEADER = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_BODY = post("/v1/plans", b"", Content_Length="1000", Connection="") + b"{"


class HalfOpen:
    """Connections that sent no more than this; whoever is dropped comes again at once."""

    def __init__(self, port: int, data: bytes) -> None:
        self._port, self._data = port, data
        self._sockets = [self._connect() for _ in range(HALF_OPEN)]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._renew)
        self.num_dropped = 0

    def _connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        made.sendall(self._data)
        made.setblocking(False)
        return made

    def _renew(self) -> None:
        while not self._ends.wait(0.5):
            for place, each in enumerate(self._sockets):
                if is_closed(each):
                    each.close()
                    self._sockets[place] = self._connect()
                    self.num_dropped += 1

    def __enter__(self) -> "HalfOpen":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for each in self._sockets:
            each.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end has hung up; what it said before is thrown away."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("data", [b"", HALF_HEADER, HALF_BODY], ids=["nothing", "header", "body"])
def test_half_open_connections_stop_nobody(tmp_path: Path, data: bytes):
    """Tests that thousands of connections that send half a request leave probes and requests as quick as before.

    Held for a minute they are dropped at their deadlines and come again, and are as many at the end as at the start.
    """
    raise_file_limit()
    traffic = ClientLimits(requests_per_s=10_000.0, burst=10_000)
    with serving(tmp_path, traffic=traffic, num_workers=0) as running, HalfOpen(running.port, data) as held:
        times, until = [], time.monotonic() + HELD_S
        while time.monotonic() < until:
            for path in ("/livez", "/v1/plans", "/v1/capabilities"):
                begin = time.monotonic()
                assert request(running, "GET", path)[0] == 200
                times.append(time.monotonic() - begin)
        is_whole = HELD_S >= WHOLE_S
        assert sorted(times)[len(times) * 99 // 100 if is_whole else len(times) // 2] < ANSWER_S
        assert held.num_dropped >= (HALF_OPEN if is_whole else 0)


def test_slow_headers_are_given_up(tmp_path: Path):
    """Tests that a header that comes byte by byte ends at its deadline, on a first and on a later request."""
    with serving(tmp_path, traffic=ClientLimits(header_timeout_s=0.5), num_workers=0) as running:
        for before in (b"", b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", running.port), timeout=30) as slow:
                if before:
                    slow.sendall(before)
                    answer = b""
                    while b"alive" not in answer:
                        chunk = slow.recv(65536)
                        assert chunk, answer
                        answer += chunk
                received = dribble(slow, HALF_HEADER)
            assert received.startswith(b"HTTP/1.1 408 ")
            assert_problem(received)


def dribble(slow: socket.socket, data: bytes) -> bytes:
    """What is answered while a byte is sent now and then."""
    slow.setblocking(False)
    until, received, sent = time.monotonic() + 30, b"", 0
    while time.monotonic() < until:
        try:
            chunk = slow.recv(65536)
        except BlockingIOError:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(data[sent % len(data) :][:1])
            sent += 1
            time.sleep(0.05)
            continue
        except (BrokenPipeError, ConnectionResetError):
            return received
        if not chunk:
            return received
        received += chunk
    pytest.fail("nobody ended it")


def assert_problem(received: bytes) -> None:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head.lower()
    assert json.loads(body)["status"] == int(head.split()[1])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000, 431),
        (b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"G@T / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 404),
        (b"GET /v1/plans/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 404),
    ],
)
def test_what_the_parser_refuses_is_a_problem(running: Running, data: bytes, status: int):
    """Tests that bytes that are no request are answered in the form of all refusals."""
    answer = send(running, data)
    assert answer.status == status
    assert "application/problem+json" in answer.head
    assert json.loads(answer.body)["status"] == status


def test_head(running: Running):
    """Tests that HEAD says of everything that can be got what GET says, without a body, streams included."""
    body = json.dumps(example_submission()).encode()
    here = json.loads(request(running, "POST", "/v1/plans", body, {"Prefer": "wait=60"})[2])["links"]["self"]
    for path in ("/livez", "/", "/v1/plans", "/v1/capabilities", here, f"{here}/plan", f"{here}/events", "/nowhere"):
        status, headers, nothing = request(running, "HEAD", path)
        same, same_headers, _ = request(running, "GET", path)
        assert (status, nothing) == (same, b""), path
        assert headers["content-type"] == same_headers["content-type"]
    assert "HEAD" in request(running, "PUT", "/v1/plans")[1]["allow"]


def test_too_many_requests_at_once(tmp_path: Path):
    """Tests that beyond the limit requests are refused as a problem, and probes are answered."""
    with serving(tmp_path, traffic=ClientLimits(requests=0), num_workers=0) as running:
        status, headers, text = request(running, "GET", "/v1/plans")
        assert (status, json.loads(text)["code"], headers["retry-after"]) == (503, "busy", "1")
        assert request(running, "GET", "/livez")[0] == 200


def test_large_bodies_share_what_there_is(tmp_path: Path):
    """Tests that bodies that are too large together are refused for now, and that their room comes back."""
    padded = json.dumps(example_submission()).encode() + b" " * 60_000
    with serving(tmp_path, traffic=ClientLimits(body_bytes=100_000), num_workers=0) as running:
        started = post("/v1/plans", b"", Content_Length=str(len(padded)), Connection="") + padded[:-1]
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", running.port), timeout=30) as first:
                first.sendall(started)
                until = time.monotonic() + 30
                while running.service.open_requests._num_bytes < len(padded) - 1:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                status, headers, text = request(running, "POST", "/v1/plans", padded)
                assert (status, json.loads(text)["code"], headers["retry-after"]) == (503, "busy", "1")
                first.sendall(padded[-1:])
                assert first.recv(100).startswith(b"HTTP/1.1 20")
        until = time.monotonic() + 30
        while running.service.open_requests._num_bytes:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_the_longest_wait_ends_first():
    """Tests that of too many that wait the one that has waited longest goes, and one that moves on begins anew.

    Tests that those who have just come stay until their request can have been read, unless they are far too many.
    """
    dropped: list[str] = []

    class Connection:
        def __init__(self, name: str) -> None:
            self.name = name

        def drop(self) -> None:
            dropped.append(self.name)

    moment = 0.0
    waiting = WaitingConnections(2, clock=lambda: moment)
    first, second, third, fourth = (Connection(name) for name in ("first", "second", "third", "fourth"))
    for connection in (first, second, first, third):
        waiting.add(connection)  # type: ignore[arg-type]
    assert (dropped, len(waiting)) == ([], 3)
    moment = LEAST_S
    waiting.add(fourth)  # type: ignore[arg-type]
    assert (dropped, len(waiting), waiting.num_dropped) == (["second", "first"], 2, 2)
    for number in range(2 * BURST + 1):
        waiting.add(Connection(str(number)))  # type: ignore[arg-type]
    assert dropped == ["second", "first", "third", "fourth", "0"]
    assert len(waiting) == 2 * BURST
