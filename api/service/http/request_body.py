"""Bodies, read with a limit on their size and their time, in the one form that is accepted."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.service.http.listener import spread
from api.service.http.problem_json import ServiceError
from api.settings import ClientLimits

_Answer = TypeVar("_Answer")


class OpenRequests:
    """The requests of a service at this moment, and the bodies that they brought."""

    def __init__(self, traffic: ClientLimits) -> None:
        self.traffic = traffic
        self.num_requests = 0
        self._num_arriving = 0
        self._num_bytes = 0

    @property
    def num_served(self) -> int:
        """Requests that have come whole."""
        return self.num_requests - self._num_arriving

    @contextlib.contextmanager
    def arriving(self) -> Iterator[None]:
        """A body comes for as long as the context lasts."""
        self._num_arriving += 1
        try:
            yield
        finally:
            self._num_arriving -= 1

    def hold(self, request: Request, size: int) -> None:
        """So many bytes more, until the request ends; raises ServiceError 503 for too many."""
        if self._num_bytes + size > self.traffic.body_bytes:
            raise busy("the bodies of all requests under way are too large together; try again")
        self._num_bytes += size
        request.state.body_bytes = getattr(request.state, "body_bytes", 0) + size

    def let_go(self, size: int) -> None:
        """Bytes of a request that has ended."""
        self._num_bytes -= size


def busy(detail: str) -> ServiceError:
    """The answer 503 to a request for which there is no room."""
    return ServiceError(503, "busy", detail=detail, headers={"Retry-After": "1"})


async def read_body(request: Request, open_requests: OpenRequests, *, is_json: bool = True) -> bytes:
    """The bytes of a body, of a JSON one unless said otherwise; raises ServiceError 400, 408, 413, 415 or 503."""
    traffic = open_requests.traffic
    if is_json:
        _require_form(request)
    _require_length(request, traffic.max_body_bytes)
    with open_requests.arriving():
        body = await _read(request, open_requests)
    if open_requests.num_served > traffic.requests:
        raise busy("too many requests are under way; try again")
    return body


async def while_connected(request: Request, work: Awaitable[_Answer]) -> _Answer:
    """What the work brings; a client that goes away cancels it. Call it once the body was read.

    Raises what the work raises, ServiceError 400 for a client that is gone, whom nobody answers.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ServiceError(400, "cut_off", detail="the connection ended before the answer; send it again")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _read(request: Request, open_requests: OpenRequests) -> bytes:
    traffic = open_requests.traffic
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(spread(traffic.body_timeout_s)):
            async for chunk in request.stream():
                size += len(chunk)
                if size > traffic.max_body_bytes:
                    raise too_large(traffic.max_body_bytes)
                open_requests.hold(request, len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        detail = f"the body took more than {traffic.body_timeout_s:g} s"
        raise ServiceError(408, "too_slow", detail=detail, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ServiceError(400, "cut_off", detail="the connection ended before the body did; send it again") from None
    return b"".join(chunks)


def _require_form(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ServiceError(415, "encoding", detail="send the body as it is, without Content-Encoding")
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() not in ("application/json", "application/x-www-form-urlencoded", ""):
        raise ServiceError(415, "content_type", detail="send JSON as application/json")
    if kind.strip().lower() == "application/x-www-form-urlencoded":
        raise ServiceError(
            415, "content_type", detail="send JSON as application/json (curl: -H 'Content-Type: application/json')"
        )
    charset = parameters.strip().lower()
    if charset.startswith("charset=") and charset.removeprefix("charset=").strip('"') not in ("utf-8", "utf8"):
        raise ServiceError(415, "charset", detail="send the text as UTF-8")


def _require_length(request: Request, most: int) -> None:
    length = request.headers.get("content-length")
    if length is None:
        return
    if not (length.isascii() and length.isdigit() and len(length) <= 20):
        raise ServiceError(400, "length", detail="Content-Length is not a number; send one")
    if int(length) > most:
        raise too_large(most)


def too_large(most: int) -> ServiceError:
    """Refuses a body; proxies refuse it in the same words (`docker/nginx/pipeplan.conf`)."""
    return ServiceError(
        413, "too_large", detail=f"the body is too large; send at most {most:,} bytes", headers={"Connection": "close"}
    )
