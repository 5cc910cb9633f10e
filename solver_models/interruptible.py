"""A call that is deep in C++ runs on a thread of its own, so that the caller can stop it and Ctrl+C is heard."""

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")

POLL_S = 0.05
"""Seconds between two looks at the caller's wish to stop."""

PATIENCE_S = 5.0
"""Seconds that a solver gets to obey; after that its thread is left behind."""


class _ThreadedCall(Thread, Generic[Result]):
    """One call and what became of it."""

    def __init__(self, call: Callable[[], Result]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.done = Event()
        self.result: Result | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:  # raised again on the caller's thread
            self.error = error
        finally:
            self.done.set()


def run_stoppable(
    call: Callable[[], Result],
    *,
    stop: Callable[[], None],
    should_stop: Callable[[], bool] | None = None,
    deadline_s: float | None = None,
) -> Result | None:
    """What `call` returns; `stop` is called, until it obeys, once `should_stop` says so or `deadline_s` has passed.

    Returns None if the call does not end within `PATIENCE_S` of being told to.
    """
    worker = _ThreadedCall(call)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    worker.start()
    try:
        while not worker.done.wait(POLL_S):
            if (should_stop is not None and should_stop()) or (deadline is not None and time.monotonic() > deadline):
                _insist(worker.done, stop)
                break
    except BaseException:
        _insist(worker.done, stop)
        raise
    if worker.error is not None:
        raise worker.error
    return worker.result


def _insist(done: Event, stop: Callable[[], None]) -> None:
    """Tell the call to stop again and again: a solver that is just starting does not hear the first time."""
    end = time.monotonic() + PATIENCE_S
    while not done.is_set() and time.monotonic() < end:
        stop()
        done.wait(POLL_S)
