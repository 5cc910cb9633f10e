"""Requests whose bodies are still coming begin a few at a time."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from api.service.http.request_admission import MOST_BEGINNING, BodyAdmission, Message, Receive, Send, admit_bodies

WITH_BODY = ((b"content-length", b"2"),)


def in_pieces(*pieces: bytes, is_whole: bool = True) -> Receive:
    """A body as a server hands it on; one that is not whole ends with the connection."""
    ends: list[Message] = [] if is_whole else [{"type": "http.disconnect"}]
    last = len(pieces) - 1 if is_whole else len(pieces)
    messages: Iterator[Message] = iter(
        [{"type": "http.request", "body": piece, "more_body": at < last} for at, piece in enumerate(pieces)] + ends
    )

    async def receive() -> Message:
        return next(messages)

    return receive


async def send(message: Message) -> None:
    """Nobody listens."""


async def read(receive: Receive) -> list[Any]:
    """All that comes, to the end."""
    found: list[Any] = []
    while True:
        message = await receive()
        found.append(message.get("body", message["type"]))
        if not message.get("more_body"):
            return found


def run_all(*requests: tuple[str, tuple[tuple[bytes, bytes], ...], Receive]) -> list[tuple[str, list[Any]]]:
    """Names and bodies in the order in which the application began, all having come in the same moment."""
    begun: list[tuple[str, list[Any]]] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        del send
        body: list[Any] = []
        begun.append((scope["name"], body))
        for _ in range(3):
            await asyncio.sleep(0)
        body += await read(receive)

    async def run() -> None:
        handle = admit_bodies(app)
        async with asyncio.TaskGroup() as group:
            for name, headers, receive in requests:
                method = "GET" if name == "GET" else "POST"
                scope = {"type": "http", "method": method, "name": name, "headers": headers}
                group.create_task(handle(scope, receive, send))

    asyncio.run(run())
    return begun


def test_whole_requests_go_first():
    """Tests that those that are not whole begin a few at a time, the newest of the others when one reads or ends, while
    other methods and whole bodies wait for nobody; and that each is handed its body as it came."""
    silent = [(f"silent {n}", WITH_BODY, in_pieces(b"{", is_whole=False)) for n in range(MOST_BEGINNING + 1)]
    begun = run_all(
        *silent,
        ("slow", WITH_BODY, in_pieces(b"{", b"", b"}")),
        ("whole", WITH_BODY, in_pieces(b"{}")),
        ("GET", WITH_BODY, in_pieces(b"{", is_whole=False)),
    )
    *first, late = [(name, [b"{", "http.disconnect"]) for name, _, _ in silent]
    assert begun == [*first, ("whole", [b"{}"]), ("GET", [b"{", "http.disconnect"]), ("slow", [b"{", b"", b"}"]), late]


def test_nobody_is_invited_before_its_turn():
    """Tests that what waits to be told to continue is not read before the application does."""
    asked: list[str] = []

    async def receive() -> Message:
        asked.append("read")
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        del scope, send
        asked.append("begun")
        await read(receive)

    headers = (*WITH_BODY, (b"expect", b"100-continue"))
    asyncio.run(admit_bodies(app)({"type": "http", "method": "POST", "headers": headers}, receive, send))
    assert asked == ["begun", "read"]


def test_an_end_without_reading_makes_room():
    """Tests that a request that is refused before its body is read, or fails, lets the next one begin."""
    num_begun = 0

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        del scope, receive, send
        num_begun += 1
        raise KeyError

    async def run() -> list[Any]:
        handle = admit_bodies(app)
        scope = {"type": "http", "method": "POST", "headers": WITH_BODY}
        calls = [handle(scope, in_pieces(b"{", is_whole=False), send) for _ in range(3 * MOST_BEGINNING)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    assert [type(each) for each in asyncio.run(run())] == [KeyError] * 3 * MOST_BEGINNING
    assert num_begun == 3 * MOST_BEGINNING


def test_who_never_reads_holds_its_place_for_a_moment():
    """Tests that requests that neither read nor end let the next ones begin after a while."""
    num_begun, all_begun = 0, asyncio.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        del scope, receive, send
        num_begun += 1
        if num_begun == MOST_BEGINNING + 1:
            all_begun.set()
        await all_begun.wait()

    async def run() -> None:
        handle = admit_bodies(app)
        scope = {"type": "http", "method": "POST", "headers": WITH_BODY}
        calls = [handle(scope, in_pieces(b"{", is_whole=False), send) for _ in range(MOST_BEGINNING + 1)]
        await asyncio.wait_for(asyncio.gather(*calls), 30)

    asyncio.run(run())


@pytest.mark.parametrize("is_given", [False, True], ids=["while it waits", "as it gets its place"])
def test_a_place_is_never_lost(is_given: bool):
    """Tests that who is given up while it waits, or in the moment in which a place is its own, leaves it to others."""

    async def run() -> None:
        places = BodyAdmission(1)
        await places.begin()
        waits = asyncio.create_task(places.begin())
        await asyncio.sleep(0)
        if is_given:
            places.end()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert waits.cancelled()
        if not is_given:
            places.end()
        await asyncio.wait_for(places.begin(), 30)

    asyncio.run(run())
