"""Checks and drawings for requests: processes of their own, one order at a time each, each within its seconds."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import LifoQueue
from typing import Any

from api.jobs.process import Child, ChildDiedError, ProcessLimits
from api.service.problem_json import ServiceError, complaints_of

LOADING_S = 60.0
"""So long a process may take to load before an order's own seconds begin."""


class Inspector:
    """Answers orders to inspect; whoever comes when too many wait is sent away.

    A process that has done enough is replaced as soon as it has its answer, and loads before the next order comes.
    """

    def __init__(self, limits: ProcessLimits, *, num_processes: int, seconds: float, max_waiting: int) -> None:
        self._seconds, self._max_waiting, self._num_waiting = seconds, max_waiting, 0
        self._is_over = threading.Event()
        self._children = [Child(limits) for _ in range(num_processes)]
        self._free: LifoQueue[Child] = LifoQueue()  # the one used last is loaded already
        for child in self._children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="inspector")

    @property
    def pids(self) -> list[int]:
        """The processes that there are."""
        return [child.pid for child in self._children if child.pid is not None]

    async def ask(self, *, seconds: float | None = None, **order: Any) -> dict[str, Any]:
        """The answer; raises ServiceError 422 for what cannot be done, 503 if there is no time or room for it."""
        if self._num_waiting >= self._max_waiting:
            raise ServiceError(503, "busy", detail="too many checks wait; try again", headers={"Retry-After": "2"})
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._carry_out, order, seconds or self._seconds)
        finally:
            self._num_waiting -= 1

    def _carry_out(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        child = self._free.get()
        try:
            return _Inspection(child, seconds, is_over=self._is_over).answer(order)
        finally:
            if child.is_spent and not self._is_over.is_set():
                child.kill()
                child.start()
            self._free.put(child)

    def close(self) -> None:
        """End the processes; what they were asked last is not answered."""
        self._is_over.set()
        for child in self._children:
            child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.kill()


class _Inspection:
    """One order for one process."""

    def __init__(self, child: Child, seconds: float, *, is_over: threading.Event) -> None:
        self._child, self._seconds, self._is_over = child, seconds, is_over

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._try(order)
        except ChildDiedError:  # perhaps it was killed for no fault of the order's
            if self._is_over.is_set():
                raise ServiceError(503, "shutting_down", detail="try another instance") from None
            answer = self._try_again(order)
        if answer is None:
            self._child.kill()
            detail = f"the check takes more than {self._seconds:g} s; use the command line"
            raise ServiceError(422, "too_slow", detail=detail)
        if answer["event"] == "failed":
            if answer["code"] == "internal_error":
                raise ServiceError(422, "not_checkable", detail="the plan cannot be played on this workload")
            raise ServiceError(422, answer["code"], errors=complaints_of(ValueError(answer["detail"])))
        return answer

    def _try(self, order: dict[str, Any]) -> dict[str, Any] | None:
        self._child.order(**{"op": "inspect", **order})
        return self._wait()

    def _try_again(self, order: dict[str, Any]) -> dict[str, Any] | None:
        is_over_memory = self._child.is_over_memory
        self._child.kill()
        try:
            if not is_over_memory:
                return self._try(order)
        except ChildDiedError:
            self._child.kill()
        raise ServiceError(422, "too_large", detail="the check took more memory than this service gives")

    def _wait(self) -> dict[str, Any] | None:
        """The answer, or None if it does not come in time; loading does not count."""
        begin = time.monotonic()
        until = begin + (self._seconds if self._child.is_loaded else LOADING_S)
        while (left := until - time.monotonic()) > 0:
            was_loaded = self._child.is_loaded
            answer = self._child.answer(min(0.05, left))
            if answer is not None and answer["event"] != "progress":
                return answer
            if self._child.is_loaded and not was_loaded:
                until = time.monotonic() + self._seconds
        return None
