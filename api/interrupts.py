"""Ctrl+C while solving: the first one asks for the best plan so far, the second one aborts.

Solvers run long stretches of C++ in which Python's own signal handler does not get its turn, and some install handlers
of their own. So the signal is blocked in every thread that starts from now on, and one thread does nothing but wait for
it; threads that numerical libraries began earlier may still take it, and hand it to a handler that does the same.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from api.failures import Exit


class Interrupts:
    """A context in which `is_asked_to_stop` becomes true at the first Ctrl+C."""

    def __init__(self, *, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._first = threading.Event()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._mask: set[int | signal.Signals] = set()
        self._handler: Callable[[int, FrameType | None], Any] | int | None = signal.SIG_DFL

    def is_asked_to_stop(self) -> bool:
        """Whether Ctrl+C was pressed."""
        return self._first.is_set()

    def __enter__(self) -> "Interrupts":
        self._handler = signal.signal(signal.SIGINT, lambda *_: self._hear())
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}))
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.signal(signal.SIGINT, self._handler)

    def _watch(self) -> None:
        while not self._over.is_set():
            if signal.sigtimedwait({signal.SIGINT}, 0.1) is not None:
                self._hear()

    def _hear(self) -> None:
        if self._first.is_set():
            _abort()
        self._first.set()
        self._on_first()


def _abort() -> None:
    """End the process at once: the main thread may be deep inside a solver."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # a live line hides the cursor
    sys.stderr.write("\nerror: interrupted\n")
    sys.stderr.flush()
    os._exit(Exit.INTERRUPTED)
