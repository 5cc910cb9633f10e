"""Checks and drawings for requests: a solver process of its own, one order at a time, each within its seconds."""

import threading
import time
from typing import Any

from api.jobs.process import Child, ChildDiedError, ProcessLimits
from api.service.problem_json import ServiceError, complaints_of


class Inspector:
    """Answers orders to inspect; whoever comes when too many wait is sent away."""

    def __init__(self, limits: ProcessLimits, *, seconds: float, max_waiting: int) -> None:
        self._child = Child(limits)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(max_waiting)

    def ask(self, *, seconds: float | None = None, **order: Any) -> dict[str, Any]:
        """The answer; raises ServiceError 422 for what cannot be done, 503 if there is no time or room for it."""
        if not self._places.acquire(blocking=False):
            raise ServiceError(503, "busy", detail="too many checks wait; try again", headers={"Retry-After": "2"})
        try:
            with self._lock:
                return self._ask(seconds or self._seconds, order)
        finally:
            self._places.release()

    def _ask(self, seconds: float, order: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._try(seconds, order)
        except ChildDiedError:  # perhaps it was killed for no fault of the order's
            answer = self._try_again(seconds, order)
        if answer is None:
            self._child.kill()
            raise ServiceError(422, "too_slow", detail=f"the check takes more than {seconds:g} s; use the command line")
        if answer["event"] == "failed":
            if answer["code"] == "internal_error":
                raise ServiceError(422, "not_checkable", detail="the plan cannot be played on this workload")
            raise ServiceError(422, answer["code"], errors=complaints_of(ValueError(answer["detail"])))
        return answer

    def _try(self, seconds: float, order: dict[str, Any]) -> dict[str, Any] | None:
        self._child.order(**{"op": "inspect", **order})
        return self._wait(seconds)

    def _try_again(self, seconds: float, order: dict[str, Any]) -> dict[str, Any] | None:
        is_over_memory = self._child.is_over_memory
        self._child.kill()
        try:
            if not is_over_memory:
                return self._try(seconds, order)
        except ChildDiedError:
            self._child.kill()
        raise ServiceError(422, "too_large", detail="the check took more memory than this service gives")

    def _wait(self, seconds: float) -> dict[str, Any] | None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            answer = self._child.answer(min(0.05, left))
            if answer is not None and answer["event"] != "progress":
                return answer
        return None

    def close(self) -> None:
        """End the process."""
        self._child.kill()
