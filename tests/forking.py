"""Processes as forks of one that has imported what they need, which is most of the work of a short process.

`python -m tests.forking` is that process: it loads what it is told to, and then carries out orders that come over a
socket, from any process that knows where it is. A fork does what `python -m module` or `python script` does.
"""

import atexit
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from profiles.measure.host_processes import become

ROOT = Path(__file__).resolve().parents[1]
SOLVERS, RANKS = "PIPEPLAN_TESTS_FORKER", "PIPEPLAN_TESTS_RANKS_FORKER"
"""The environment variables by which processes know where their forks come from."""
SHARED = {SOLVERS: "tests.api.forked_solvers:load", RANKS: "tests.integration.forked_ranks:load"}
MESSAGE_BYTES = 2**17
"""Orders and answers are shorter."""
FORKS_SECONDS: list[float] = []
"""Processor seconds of the forks that this process has seen end, with those of the forks that these asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a fork runs."""

    program: str
    """A module as behind `python -m`, or the path of a script."""
    arguments: Sequence[str] = ()
    environment: dict[str, str]
    """All of it; what PYTHONPATH names is found first, as in a process of its own."""
    folder: Path = ROOT
    """Where it runs."""
    needs: Sequence[str] = ()
    """Modules that the process that forks imports first, once: whoever wants them after that has them."""


class Forker:
    """The process that forks, as others see it."""

    def __init__(self, address: str) -> None:
        self.address = address
        """The path of its socket."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        self._lock = threading.Lock()

    def start(self, program: Program, *, files: Sequence[int]) -> "ForkedProcess":
        """Fork; `files` become its standard input, output and error, in a session of its own."""
        order = {
            "program": program.program,
            "arguments": list(program.arguments),
            "environment": program.environment,
            "folder": str(program.folder),
            "needs": list(program.needs),
        }
        return ForkedProcess(self, int(self.ask(order, files)))

    def ask(self, order: dict[str, Any], files: Sequence[int] = ()) -> Any:
        """The answer to an order; whoever else asks waits."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(order).encode()], files)
            answer = self._connection.recv(MESSAGE_BYTES)
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def forks_of(self, pid: int) -> list[int]:
        """The forks that a process asked for, and has not seen end."""
        return list(self.ask({"forks_of": pid}))

    def close(self) -> None:
        """Ask for nothing more."""
        self._connection.close()


class ForkedProcess:
    """A fork; as much of `subprocess.Popen` as is needed."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._forker = forker

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        if self.returncode is None:
            self.returncode, seconds = self._forker.ask({"poll": self.pid})
            FORKS_SECONDS.append(seconds)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired if it goes on for so many seconds."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # another thread has seen the end
                self._await(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _await(self, timeout: float | None) -> None:
        """Until the process ends, or its time is over; nobody asks the forker meanwhile."""
        ended = os.pidfd_open(self.pid)
        try:
            select.select([ended], [], [], None if timeout is None else max(0.0, timeout))
        finally:
            os.close(ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, if there is still somebody to hear it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start_forker(load: str) -> Forker:
    """A process that calls `load`, a `module:function` without arguments, before it forks; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="forker-")
    address = str(Path(folder, "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(100)
        number = str(listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", number, load],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
        )

    forker = Forker(address)

    def end() -> None:
        forker.close()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return forker


def find_forker(variable: str, load: str) -> Forker:
    """The one that the variable names, which all processes of a run have in common; otherwise one of this process."""
    address = os.environ.get(variable)
    if address is None:
        return start_forker(load)
    forker = Forker(address)
    atexit.register(forker.close)
    return forker


def share_forkers() -> None:
    """Start, for this process and all that it starts, those that are worth it where many tests run."""
    for variable, load in SHARED.items():
        os.environ[variable] = start_forker(load).address


class Orders:
    """The side of the process that forks."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: list[socket.socket] = []
        self._masters: dict[int, int] = {}
        """Who asked for each fork that is not known to have ended."""
        self._ends: dict[int, tuple[int, float]] = {}
        """Exit codes and processor seconds of those that are: several threads may want to know."""
        self._spent = defaultdict[int, float](float)
        """Processor seconds of the forks that each asked for and that have ended."""

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Carry out orders until standard input ends; in a fork, the order of what to become, and its files."""
        while True:
            ready, _, _ = select.select([0, self._listener, *self._connections], [], [])
            for one in ready:
                if one == 0:
                    return None
                if one is self._listener:
                    self._connections.append(one.accept()[0])
                elif (mine := self._hear(one)) is not None:
                    return mine

    def _hear(self, connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
        try:
            message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
        except ConnectionResetError:  # whoever asked was killed before the answer was read
            message, files = b"", []
        if not message:
            self._connections.remove(connection)
            connection.close()
            return None
        order = json.loads(message)
        if "program" in order:
            self._import(order["needs"])
            answer: Any = os.fork()
            if not answer:
                for each in (self._listener, *self._connections):
                    each.close()
                return order, files
            for file in files:
                os.close(file)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self._masters[answer] = struct.unpack("3i", credentials)[0]
        elif "poll" in order:
            answer = self._poll(order["poll"])
        else:
            answer = [pid for pid, master in self._masters.items() if master == order["forks_of"]]
        with suppress(BrokenPipeError, ConnectionResetError):  # killed since
            connection.send(json.dumps(answer).encode())
        return None

    def _import(self, modules: Sequence[str]) -> None:
        """Import what is not there; it never becomes garbage: no fork looks through it."""
        if any(module not in sys.modules for module in modules):
            for module in modules:
                importlib.import_module(module)
            gc.freeze()

    def _poll(self, pid: int) -> tuple[int | None, float]:
        """The exit code and the processor seconds of a fork, once it has ended."""
        if pid in self._masters:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if not ended:
                return None, 0.0
            seconds = usage.ru_utime + usage.ru_stime + self._spent.pop(pid, 0.0)
            self._spent[self._masters.pop(pid)] += seconds
            self._ends[pid] = os.waitstatus_to_exitcode(status), seconds
        return self._ends[pid]


def run_to_end(order: dict[str, Any], files: Sequence[int]) -> int:
    """Be the program; its exit code, once what it ended with is written as `python` writes it."""
    try:
        os.setsid()
        become(order["program"], order=order, files=files)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def leave(code: int) -> None:
    """End as `python` does, but do not take apart what was loaded: a quarter of a second or more for every fork."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Load, and listen; what is loaded never becomes garbage: no fork looks through it."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    module, _, function = sys.argv[2].partition(":")
    getattr(importlib.import_module(module), function)()
    gc.freeze()
    order = Orders(listener).serve()
    if order is not None:
        leave(run_to_end(*order))


if __name__ == "__main__":
    main()
