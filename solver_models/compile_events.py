"""Hears when numba compiles, so that a clock can stand still meanwhile: that happens once per machine, not per run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import TracebackType

from numba.core.event import Listener, register, unregister

KIND = "numba:compile"
"""The event of a kernel that was not found on disk."""


class CompileWatch(Listener):
    """Adds up the seconds in which any thread of this process compiles, from its entry to its exit."""

    def __init__(self, *, on_begin: Callable[[], None]) -> None:
        """`on_begin` is called on the thread that begins to compile while no other one does."""
        self._on_begin = on_begin
        self._lock = RLock()
        self._depth = 0
        self._begin = self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, those of what is being compiled included."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._begin if self._depth else 0.0)

    def on_start(self, event: object) -> None:
        """A kernel begins to be compiled, maybe in the midst of another one that calls it."""
        del event
        with self._lock:
            self._depth += 1
            is_first = self._depth == 1
            if is_first:
                self._begin = time.monotonic()
        if is_first:
            self._on_begin()

    def on_end(self, event: object) -> None:
        """A kernel is compiled."""
        del event
        with self._lock:
            if self._depth:
                self._depth -= 1
                self._seconds += 0.0 if self._depth else time.monotonic() - self._begin

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens meanwhile as compiling, wherever it is done."""
        self.on_start(None)
        try:
            yield
        finally:
            self.on_end(None)

    def __enter__(self) -> "CompileWatch":
        register(KIND, self)  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unregister(KIND, self)  # type: ignore[no-untyped-call]
