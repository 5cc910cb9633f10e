"""Messages on their way: a tensor is let go of as soon as it has been sent, not at the end of the iteration."""

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch


class Sending:
    """The sends that one process has begun in an iteration; each keeps its tensor alive."""

    def __init__(self, *, device: torch.device) -> None:
        self._is_host = device.type == "cpu"
        self._running: deque[Any] = deque()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._waiting: Thread | None = None
        self._errors: list[BaseException] = []

    def add(self, works: Sequence[Any]) -> None:
        """Sends that were begun; forgotten once they are done, those of one process in the order of their begin."""
        if self._is_host:
            if self._waiting is None:
                self._waiting = Thread(target=_wait_for_all, args=(self._queue, self._errors), daemon=True)
                self._waiting.start()
            for work in works:
                self._queue.put(work)
            return
        while self._running and self._running[0].is_completed():
            self._running.popleft()
        self._running.extend(works)

    def finish(self) -> None:
        """Wait for all of them; raises what one of them raised."""
        while self._running:
            self._running.popleft().wait()
        if self._waiting is not None:
            self._queue.put(None)
            self._waiting.join()
            self._waiting = None
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error


def _wait_for_all(queue: SimpleQueue[Any], errors: list[BaseException]) -> None:
    """Gloo tells only those that wait whether a send is done, so a thread waits for each in turn."""
    while (work := queue.get()) is not None:
        try:
            work.wait()
        except RuntimeError as error:
            errors.append(error)
        del work
