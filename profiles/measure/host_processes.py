"""Processes that measure on this host, each a fork of one that has imported torch, which takes a second or two.

`HostProcesses` starts that one when it is first needed. It does nothing else: it has no threads and has computed
nothing, so that a fork is what a fresh process is after its imports.
"""

import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = ("torch._dynamo", "torch.distributed", "profiles.measure.load_model", "profiles.measure.repeated_runs")
"""What all of them import sooner or later: the first, half a second, as soon as they make an optimizer."""
_THREADS = {"OMP_NUM_THREADS": "1"}
"""What torchrun sets where it is not set."""
NAME = "profiles.measure.host_processes"
"""Of this module, as a program."""
PAUSE_S = 0.02
"""Between two looks whether a process has ended."""


class HostProcess:
    """A process that was started; as much of `subprocess.Popen` as is needed."""

    def __init__(self, starter: "HostProcesses", pid: int) -> None:
        self.pid = pid
        self._starter = starter
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        if self._code is None:
            self._code = self._starter.ask({"poll": self.pid})
        return self._code

    def kill(self) -> None:
        """End it, and wait until it has ended."""
        while self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(PAUSE_S)


class HostProcesses:
    """Starts processes, within a `with` block; who starts some ends them before it."""

    def __init__(
        self, *, also: Sequence[str] = (), prepare: str = "", environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`also`: modules to import; `prepare`: `module:function` without parameters that each process calls first, by
        name, for it has to reach other processes; `environment`: variables that matter only as an interpreter starts.
        """
        self._environment = dict(environment)
        self._imported = (*IMPORTED, *also)
        self._prepare = prepare
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()
            self._connection = self._process = None

    def start(
        self, module: str, *arguments: str, environment: Mapping[str, str], files: tuple[int, int, int]
    ) -> HostProcess:
        """What `python -m module` does here with these arguments; `files`: standard input, output and error."""
        order = {
            "module": module,
            "arguments": arguments,
            "environment": _THREADS | os.environ | dict(environment),
            "folder": os.getcwd(),
        }
        return HostProcess(self, int(self.ask(order, files)))

    def start_ranks(self, module: str, *arguments: str, count: int, folder: Path) -> list[HostProcess]:
        """So many processes that are to meet, as torchrun would start them; each writes what it says to `logN`."""
        started = list[HostProcess]()
        for rank in range(count):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            environment = {name: str(value) for name, value in own.items()}
            with open(folder / f"log{rank}", "wb") as log, open(os.devnull, "rb") as nothing:
                files = nothing.fileno(), log.fileno(), log.fileno()
                started.append(self.start(module, *arguments, environment=environment, files=files))
        return started

    def run_ranks(
        self,
        module: str,
        *arguments: str,
        count: int,
        folder: Path,
        timeout_s: float,
        look: Callable[[], None] = lambda: None,
    ) -> str:
        """Start them, and wait until all have ended well: why they did not, or nothing. None is left.

        `look`: called again and again meanwhile.
        """
        started = self.start_ranks(module, *arguments, count=count, folder=folder)
        deadline = time.monotonic() + timeout_s
        try:
            while None in (codes := [process.poll() for process in started]) and not any(codes):
                if time.monotonic() > deadline:
                    return f"it was not done after {timeout_s:.0f} s"
                look()
                time.sleep(PAUSE_S)
        finally:
            for process in started:
                process.kill()
        failed = [rank for rank, code in enumerate(codes) if code]
        return f"process {failed[0]} ended with {codes[failed[0]]} ({_last_line(folder, failed[0])})" if failed else ""

    def ask(self, order: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        """The answer to an order; raises ValueError if nobody is there to give one."""
        connection = self._connect()
        with suppress(ConnectionError, EOFError):
            connection.send((order, len(files)))
            for file in files:
                send_handle(connection, file, None)
            return connection.recv()
        raise ValueError("the process that starts the measuring processes has ended (see above)")

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection, theirs = Pipe()
            paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", NAME, str(theirs.fileno()), self._prepare, *self._imported],
                    env=_THREADS | os.environ | self._environment | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        return self._connection


def _last_line(folder: Path, rank: int) -> str:
    lines = (folder / f"log{rank}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def _serve(connection: Connection) -> tuple[dict[str, Any], list[int]] | None:
    """Carry out orders until nobody gives any; in a fork, the order of what to become, and its files."""
    codes: dict[int, int] = {}
    with suppress(EOFError):
        while True:
            order, count = connection.recv()
            files = [recv_handle(connection) for _ in range(count)]
            if "module" not in order:
                connection.send(_poll(order["poll"], codes))
                continue
            pid = os.fork()
            if not pid:
                connection.close()
                return order, files
            for file in files:
                os.close(file)
            connection.send(pid)
    return None


def _poll(pid: int, codes: dict[int, int]) -> int | None:
    if pid not in codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def become(program: str, *, order: Mapping[str, Any], files: Sequence[int], prepare: str = "") -> None:
    """Be what `python -m module` is, or `python script`, in its folder, environment and files, once it is prepared."""
    is_script = program.endswith(".py")
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    found = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = str(Path(program).parent) if is_script else ""
    sys.path[:] = [first, *found, *(path for path in sys.path if path not in (first, *found))]
    if prepare:
        module, _, function = prepare.partition(":")
        getattr(importlib.import_module(module), function)()
    sys.argv = [program, *order["arguments"]]
    if is_script:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def main(number: str, prepare: str, *modules: str) -> None:
    """Import, and start what is asked for; what is imported never becomes garbage: no fork looks through it."""
    mine: tuple[dict[str, Any], list[int]] | None = None
    with suppress(KeyboardInterrupt), Connection(int(number)) as connection:
        for module in modules:
            importlib.import_module(module)
        gc.freeze()
        mine = _serve(connection)
    if mine is not None:
        become(mine[0]["module"], order=mine[0], files=mine[1], prepare=prepare)


if __name__ == "__main__":
    main(*sys.argv[1:])
