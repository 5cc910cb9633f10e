"""HTTP/1.1 connections with deadlines: who sends half a request, or nothing, holds no place that others need.

A connection *waits* while the server has no whole request of it to answer: its header is not complete, its body is
still coming, or it is kept alive without a request. Headers and bodies have deadlines, and when too many connections
wait, the one that has waited longest is dropped. Who is dropped comes again at once, and that costs more than to let
it wait: hence many may, and the deadlines of those who came together are not the same. What the parser refuses is a
problem document like all others.

uvicorn 0.54 bounds the size of a header and the time between requests, and has no deadline for a header or a body; its
`limit_concurrency` counts connections that wait like those at work, and answers in plain text.
"""

import asyncio
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.service.handlers.responses import render_json
from api.service.http.problem_json import ServiceError
from api.settings import ClientLimits

_BODY_GRACE_S = 5.0
"""So long after its time a body is cut off even if nobody reads it."""

_RESERVED_FILES = 256
"""Descriptors kept for the store, the solver processes and the listening socket."""

LEAST_S = 1.0
"""So long a connection may wait before it has to make room: its request may have come with it, and not be read yet."""

BURST = 4
"""Times as many as may wait, that many within `LEAST_S` are too many all the same."""

SPREAD = 1.5
"""The latest deadline by the earliest one."""

_CODES = {400: "not_http", 408: "too_slow", 431: "header_too_large", 501: "not_http", 503: "busy"}


def spread(seconds: float) -> float:
    """A deadline of so many seconds, or of up to half as many more."""
    return random.uniform(seconds, SPREAD * seconds)


class WaitingConnections:
    """The connections that wait, longest first."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._clock = most, clock
        self._waiting: dict[_DeadlineProtocol, float] = {}
        """Since when."""
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: "_DeadlineProtocol") -> None:
        """It begins to wait; beyond `most`, those that have waited longest are dropped, but none at once."""
        now = self._clock()
        self._waiting.pop(connection, None)
        self._waiting[connection] = now
        while len(self._waiting) > self.most:
            oldest, since = next(iter(self._waiting.items()))
            if now - since < LEAST_S and len(self._waiting) <= BURST * self.most:
                return
            self.remove(oldest)
            self.num_dropped += 1
            oldest.drop()

    def remove(self, connection: "_DeadlineProtocol") -> None:
        """Forget a connection that no longer waits."""
        self._waiting.pop(connection, None)


class _DeadlineProtocol(H11Protocol):
    """uvicorn's connection, with deadlines; `make_protocol` gives it its limits."""

    waiting: WaitingConnections
    """For the header of a request."""
    waiting_bodies: WaitingConnections
    traffic: ClientLimits

    _deadline: asyncio.TimerHandle | None = None
    _is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The header is expected from now on."""
        super().connection_made(transport)
        self._expect(self.traffic.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The first byte of a further request sets its deadline; further bytes do not move it."""
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._expect(self.traffic.header_timeout_s)
        super().data_received(data)

    def handle_events(self) -> None:
        """After the events: how far is the request?"""
        super().handle_events()
        state = self.conn.their_state
        if self.transport.is_closing() or state not in (h11.IDLE, h11.SEND_BODY):
            self._expect_nothing()
        elif state is h11.SEND_BODY and not self._is_in_body:
            self._expect_nothing()
            self.waiting_bodies.add(self)
            self._set_deadline(SPREAD * self.traffic.body_timeout_s + _BODY_GRACE_S)
            self._is_in_body = True

    def on_response_complete(self) -> None:
        """Kept alive, the connection waits again; uvicorn's own timer ends that."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self._deadline is None and not self.transport.is_closing():
            self.waiting.add(self)

    def _expect(self, seconds: float) -> None:
        self._expect_nothing()
        self.waiting.add(self)
        self._set_deadline(spread(seconds))

    def _set_deadline(self, seconds: float) -> None:
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _expect_nothing(self) -> None:
        self._is_in_body = False
        self.waiting.remove(self)
        self.waiting_bodies.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        self._end(408, f"a request's header may take {self.traffic.header_timeout_s:g} s")

    def drop(self) -> None:
        """Close the connection that has waited longest."""
        self._end(503, "too many connections wait; send whole requests, and try again")

    def _end(self, status: int, detail: str) -> None:
        """Say why, if nothing else is being said, and close; a request whose body is missing is given up."""
        if not self.transport.is_closing():
            if self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._say(status, detail)
            self.transport.abort() if self._is_in_body else self.transport.close()
        self._expect_nothing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser cannot read, with its status and `problem+json`."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.ProtocolError) else 400
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(status, msg)
        self.transport.close()

    def _say(self, status: int, detail: str) -> None:
        """A problem document, past the application."""
        body = render_json(ServiceError(status, _CODES.get(status, "not_http"), detail=detail).document())
        headers = [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


def make_protocol(traffic: ClientLimits) -> type[asyncio.Protocol]:
    """The protocol of one server, whose connections know each other."""
    files = max(64, (raise_file_limit() - _RESERVED_FILES) // 3)
    attributes: dict[str, Any] = {
        "waiting": WaitingConnections(min(traffic.waiting_connections, files)),
        "waiting_bodies": WaitingConnections(min(traffic.waiting_bodies, files)),
        "traffic": traffic,
    }
    return type("ServerProtocol", (_DeadlineProtocol,), attributes)


def raise_file_limit() -> int:
    """As many open files as this process may have; the answer is how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, 65_536)) if hard != resource.RLIM_INFINITY else max(soft, 65_536)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
