"""Checks and drawings for requests: processes of their own, one order at a time each, each within its seconds.

Tenants take them in rotation. A body is read once its order is next: one tenant's keep nobody else's waiting.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from api.jobs.workers.solver_handle import Child, ChildDiedError, ProcessLimits
from api.service.fair_queue import FairQueue
from api.service.http.problem_json import ServiceError, complaints_of

_MakeOrder = Callable[[], dict[str, Any]]

LOADING_S = 60.0
"""So long a process may take to load before an order's own seconds begin."""

_STANDING_BY = 2
"""Processes without an order that are loaded, or load, as far as there may be as many: one that is killed leaves
another, so that nobody waits the seconds that a new one takes to load."""


class Inspector:
    """Answers orders to inspect; the one that comes when too many wait, or too many of its tenant's, is sent away.

    A process that has done enough is replaced as soon as it has its answer, one that has died at once. Orders go to
    those that are loaded, and what a process died of is tried by another.
    """

    def __init__(self, limits: ProcessLimits, *, num_processes: int, seconds: float, queue: FairQueue) -> None:
        self._seconds, self._queue = seconds, queue
        self._is_over = False
        self._children = [Child(limits, on_change=self._tend) for _ in range(num_processes)]
        self._idle = list(self._children)  # the one used last stands last
        self._change = threading.Condition()
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="inspector")

    @property
    def pids(self) -> list[int]:
        """The processes that there are."""
        return [child.pid for child in self._children if child.pid is not None]

    async def ask(self, tenant: str, make_order: _MakeOrder, *, seconds: float | None = None) -> dict[str, Any]:
        """The answer to the order that `make_order` makes, in a thread, once it is the tenant's turn.

        Cancelled, it ends the process that works on it. Raises what `make_order` raises, ServiceError 422 for what
        cannot be done, 429 and 503 if there is no time or room.
        """
        async with self._queue.slot(tenant):
            loop, cancelled = asyncio.get_running_loop(), threading.Event()
            work = partial(self._carry_out, make_order, seconds=seconds or self._seconds, cancelled=cancelled)
            try:
                return await loop.run_in_executor(self._threads, work)
            finally:
                cancelled.set()

    def _carry_out(self, make_order: _MakeOrder, *, seconds: float, cancelled: threading.Event) -> dict[str, Any]:
        order = make_order()
        for is_last in (False, True):
            with self._one() as child:
                try:
                    return _answer(child, order, seconds=seconds, cancelled=cancelled)
                except ChildDiedError:  # perhaps it was killed for no fault of the order's
                    child.kill()
                    if self._is_over:
                        raise ServiceError(503, "shutting_down", detail="try another instance") from None
                    if child.is_over_memory or is_last:
                        break
        raise ServiceError(
            422, "too_large", detail="the check needs more memory than this service allows; use the command line"
        )

    @contextlib.contextmanager
    def _one(self) -> Iterator[Child]:
        """A process for one order."""
        with self._change:
            if (child := self._next()) is None:
                self._stand_by()
            while child is None:
                self._change.wait()
                child = self._next()
            self._idle.remove(child)
        try:
            yield child
        finally:
            self._take_back(child)

    def _next(self) -> Child | None:
        """One that is loaded; one that is not only where none is, for those that are busy will be free sooner."""
        ready = [child for child in self._idle if child.is_loaded and child.is_alive]
        if ready:
            return ready[-1]
        if any(child.is_loaded for child in self._children if child not in self._idle):
            return None
        return next((child for child in self._idle if child.is_alive), self._idle[-1])

    def _take_back(self, child: Child) -> None:
        with self._change:
            self._idle.append(child)
            if not self._is_over:
                if child.is_spent:
                    child.kill()
                if not child.is_alive:
                    child.start()
                self._stand_by()
            self._change.notify_all()

    def _stand_by(self) -> None:
        """Let as many load as should be there for the next orders."""
        num_missing = _STANDING_BY - sum(child.is_alive for child in self._idle)
        for child in [child for child in self._idle if not child.is_alive][: max(0, num_missing)]:
            child.start()

    def _tend(self) -> None:
        """Some process says that it is loaded, has answered, or is dead: see to those without an order.

        One that dies while it loads is started by the next order, not here: it may do so for ever.
        """
        with self._change:
            for child in () if self._is_over else tuple(self._idle):
                if child.pid is None:
                    continue
                try:
                    child.answer(0.0)
                except ChildDiedError:
                    was_loaded = child.is_loaded
                    child.kill()
                    if was_loaded:
                        child.start()
            self._change.notify_all()

    def close(self) -> None:
        """End the processes; what they were asked last is not answered."""
        with self._change:
            self._is_over = True
            for child in self._children:
                child.kill()
            self._change.notify_all()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.kill()


def _answer(child: Child, order: dict[str, Any], *, seconds: float, cancelled: threading.Event) -> dict[str, Any]:
    """What the process says to it; raises ServiceError, or ChildDiedError if it ended before it answered."""
    child.order(**{"op": "inspect", **order})
    answer = _wait(child, seconds=seconds, cancelled=cancelled)
    if answer is None:
        child.kill()
        raise ServiceError(422, "too_slow", detail=f"the check takes more than {seconds:g} s; use the command line")
    if answer["event"] == "failed":
        if answer["code"] == "internal_error":
            raise ServiceError(
                422,
                "not_checkable",
                detail="the plan cannot be played on this workload; give the workload it was made for",
            )
        raise ServiceError(422, answer["code"], errors=complaints_of(ValueError(answer["detail"])))
    return answer


def _wait(child: Child, *, seconds: float, cancelled: threading.Event) -> dict[str, Any] | None:
    """The answer, or None if it does not come in time or nobody waits for it; loading does not count."""
    until = time.monotonic() + (seconds if child.is_loaded else LOADING_S)
    while (left := until - time.monotonic()) > 0 and not cancelled.is_set():
        was_loaded = child.is_loaded
        answer = child.answer(min(0.05, left))
        if answer is not None and answer["event"] != "progress":
            return answer
        if child.is_loaded and not was_loaded:
            until = time.monotonic() + seconds
    return None
