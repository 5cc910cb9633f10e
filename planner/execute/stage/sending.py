"""Messages on their way: what was sent is released soon after, not at the end of the iteration."""

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

WAKING_BYTES = 1 << 20
"""What sends of the host's memory hold before a thread wakes to wait for them.

A wake-up per message costs more than a small message: 1F1B of a small GPT (256 KiB each) took 1.17 to 1.22 times as
long as without any, on two processes of one thread each on two cores.
"""


class Sending:
    """The sends that one process has begun in an iteration; each keeps its tensor alive."""

    def __init__(self, *, is_host: bool) -> None:
        """`is_host`: messages of the host's memory, which gloo sends; otherwise those of accelerators can be asked."""
        self._is_host = is_host
        self._running: deque[Any] = deque()
        self._num_bytes = 0
        """That the running sends of the host's memory hold, at most `WAKING_BYTES`."""
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._waiting: Thread | None = None
        self._errors: list[BaseException] = []

    def add(self, works: Sequence[Any], *, num_bytes: int) -> None:
        """Sends that were begun, of so many bytes; forgotten soon after they are done, in the order of their begin."""
        self._running.extend(works)
        if not self._is_host:
            while self._running and self._running[0].is_completed():
                self._running.popleft()
            return
        self._num_bytes += num_bytes
        if self._num_bytes > WAKING_BYTES:
            self._release()

    def _release(self) -> None:
        """To the thread, which it wakes."""
        if self._waiting is None:
            self._waiting = Thread(target=_wait_for_all, args=(self._queue, self._errors), daemon=True)
            self._waiting.start()
        self._queue.put(self._running)
        self._running, self._num_bytes = deque(), 0

    def finish(self) -> None:
        """Wait for all of them; raises what one of them raised."""
        _wait_for(self._running, self._errors)
        self._num_bytes = 0
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
    while (works := queue.get()) is not None:
        _wait_for(works, errors)


def _wait_for(works: deque[Any], errors: list[BaseException]) -> None:
    while works:
        work = works.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            errors.append(error)
        del work


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """The same with its values in memory, which is what is sent: conjugates and negatives are only marked as such."""
    return in_rows(tensor.resolve_conj().resolve_neg())


def in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, row by row; gloo sends nothing else. `tensor`: lies so, or with its channels last."""
    return tensor if tensor.is_contiguous() else tensor.movedim(1, -1)
