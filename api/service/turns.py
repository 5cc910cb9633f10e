"""Requests whose bodies are still coming begin a few at a time, so that thousands that come at once stop nobody.

To begin a request costs far more than to hold its connection: the key is looked up, by threads that others need as
well. One without its body has nothing to be done for it yet. Whoever has begun and waits for its body lets the next one
begin; those that are whole, and those without a body, begin at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_BEGINNING = 4
"""So many begin at once; one that has to wait for a store that is away does not keep all others waiting."""


class Turns:
    """Places for those that begin; of those that wait the newest is next: who came with a crowd may well be silent."""

    def __init__(self, most: int) -> None:
        self._num_free = most
        self._waiting: list[asyncio.Future[None]] = []

    async def begin(self) -> None:
        """Return once there is a place, which is taken then."""
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its place was given to it in the same moment
                self.end()
            raise

    def end(self) -> None:
        """The place is another one's, or free."""
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


def in_turn(app: AsgiApp) -> AsgiApp:
    """The application, begun at once for a request that is whole, and in its turn for another."""
    turns = Turns(MOST_BEGINNING)

    async def handle(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]} if scope["type"] == "http" else set()
        if names.isdisjoint({b"content-length", b"transfer-encoding"}):
            await app(scope, receive, send)
        elif b"expect" in names:  # to read it would invite a body that may be refused
            await _begin(app, scope, _Body(receive, [], turns), send)
        else:
            first = await receive()
            body = _Body(receive, [first], turns)
            await (_begin(app, scope, body, send) if first.get("more_body") else app(scope, body, send))

    return handle


async def _begin(app: AsgiApp, scope: MutableMapping[str, Any], body: "_Body", send: Send) -> None:
    await body.begin()
    try:
        await app(scope, body, send)
    finally:
        body.end()


class _Body:
    """What has come of a body, and then the rest; whoever reads it has begun."""

    def __init__(self, receive: Receive, said: list[Message], turns: Turns) -> None:
        self._receive, self._said, self._turns = receive, said, turns
        self._has_turn = False

    async def begin(self) -> None:
        """Wait for one's turn."""
        await self._turns.begin()
        self._has_turn = True

    def end(self) -> None:
        """It is somebody else's turn, if it was one's own."""
        if self._has_turn:
            self._has_turn = False
            self._turns.end()

    async def __call__(self) -> Message:
        self.end()
        return self._said.pop() if self._said else await self._receive()
