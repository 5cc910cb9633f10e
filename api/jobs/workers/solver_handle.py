"""A solver process as its master sees it: started, contacted, watched, and killed if it must be."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from api.jobs.logs import VARIABLE, log_printed
from planner.progress import usable_cores

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """What one solver process may take."""

    memory_bytes: int = 4 * 2**30
    """Memory; above it the process is ended."""
    num_threads: int = field(default_factory=usable_cores)
    """Threads that search at once; a request may ask for fewer."""
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers do tasks of its searches."""
    jobs_per_process: int = 200
    """Orders after which a fresh process takes over."""


class ChildDiedError(Exception):
    """The process ended without a last word."""


def logs_json() -> bool:
    """Whether all that solver processes print goes through their master, who logs it."""
    return os.environ.get(VARIABLE) == "json"


def _log_what_it_prints(process: "subprocess.Popen[bytes]") -> None:
    """Solvers, and a process that cannot even start, know nothing of our log."""
    assert process.stderr is not None
    with process.stderr, contextlib.suppress(OSError, ValueError):
        for line in process.stderr:
            log_printed(line.decode(errors="replace"), pid=process.pid)


class Child:
    """One solver process; restarted when it dies, is killed or has done enough."""

    def __init__(self, limits: ProcessLimits, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._limits, self._on_change = limits, on_change
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: Queue[dict[str, Any] | None] = Queue()
        self._num_orders = 0
        self.is_over_memory = False
        """Whether the last end was for its memory."""
        self.is_loaded = False
        """Whether it has said that it is ready for orders."""

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, loaded or loading."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def is_spent(self) -> bool:
        """Whether it has done enough, and a fresh one should take over."""
        return self._process is not None and self._num_orders >= self._limits.jobs_per_process

    def start(self) -> None:
        """Make sure that a process is there."""
        if self.is_alive:
            return
        self.kill()
        self._answers, self._num_orders, self.is_over_memory = Queue(), 0, False
        self.is_loaded = False
        self._process = self._open()
        threading.Thread(target=self._read, args=(self._process, self._answers), daemon=True).start()
        if self._process.stderr is not None:
            threading.Thread(target=_log_what_it_prints, args=(self._process,), daemon=True).start()

    def _open(self) -> "subprocess.Popen[bytes]":
        """A process that loads, and then takes orders."""
        return subprocess.Popen(
            [sys.executable, "-m", *self._program()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if logs_json() else None,
            env=self._environment(),
            start_new_session=True,  # Ctrl+C at a terminal is for the master
        )

    def _program(self) -> tuple[str, ...]:
        limits = (str(self._limits.memory_bytes), str(self._limits.num_threads))
        return "api.jobs.workers.solver_process", *limits, *([self._limits.scheduler] if self._limits.scheduler else ())

    def _environment(self) -> dict[str, str]:
        """What the solvers need, and no secret of the service."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "TMPDIR", VARIABLE) or name.startswith(("NUMBA_", "XDG_"))
        }
        path = os.pathsep.join(entry for entry in sys.path if entry)
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # the search has threads of its own
        return {"PYTHONPATH": path, **alone, **kept}

    def _read(self, process: "subprocess.Popen[bytes]", answers: "Queue[dict[str, Any] | None]") -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answers.put(json.loads(line))
                self._on_change()
        except ValueError:
            pass  # cut off in the middle of a line
        finally:
            answers.put(None)
            self._on_change()

    def order(self, **order: Any) -> None:
        """Give an order; raises ChildDiedError if nobody takes it."""
        if self.is_spent:
            self.kill()
        self.start()
        self._num_orders += 1
        self._send(order)

    def ask_to_stop(self) -> None:
        """Ask for the best plan now; harmless if nothing is under way."""
        self._send({"op": "stop"})

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None:
            raise ChildDiedError("the solver process was ended")
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise ChildDiedError("the solver process does not accept requests") from None

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer, or None if there is none in time; raises ChildDiedError if there will be none."""
        self._watch_memory()
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            return None
        if answer is None:
            raise ChildDiedError(self._last_lines())
        self.is_loaded = True
        return None if answer["event"] == "ready" else answer

    def _watch_memory(self) -> None:
        process = self._process
        if process is None:
            return
        try:
            with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return
        if resident > self._limits.memory_bytes:
            self.is_over_memory = True
            process.kill()

    def _last_lines(self) -> str:
        process = self._process
        if process is None:
            return "the solver process was ended"
        code = process.wait()
        if self.is_over_memory:
            return f"the solver took more than {self._limits.memory_bytes:,} bytes"
        return f"the solver ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None  # two threads may want its end
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
