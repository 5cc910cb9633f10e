"""The processes of a service that is used hard: started, killed, watched from outside through /proc."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parent.parent
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVICE, WORKER, SOLVER, HELPER = "service", "worker", "solver", "helper"
"""Roles of processes."""

SOLVER_GIB = 1.5
"""Memory cap of solver processes; helpers get another one, by which they are distinguished."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What the processes of one role hold at one moment."""

    num_processes: int
    resident_bytes: int
    """Of the largest one."""
    num_descriptors: int
    """Open files and sockets of the one that has most."""
    num_threads: int
    """Of the one that has most."""


@dataclass
class SoakSite:
    """A service with jobs that expire soon; with PostgreSQL two workers of its own beside it."""

    folder: Path
    retention_s: float
    database_url: str | None = None
    port: int = field(default_factory=free_port)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """By role and number, e.g. `worker-1`."""
    num_starts: int = 0
    limits: tuple[str, ...] = ("hourly_jobs=1000000",)
    """As `--limit` takes them."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """Processes that an operator starts."""
        return (SERVICE,) if self.database_url is None else (SERVICE, f"{WORKER}-0", f"{WORKER}-1")

    def start(self, name: str) -> None:
        """One process; what it says goes to the site's log."""
        database = () if self.database_url is None else ("--database-url", self.database_url)
        if name == SERVICE:
            days = self.retention_s / 86400
            set_limits = [part for limit in self.limits for part in ("--limit", limit)]
            limits = ("--retention-days", f"{days:.6f}", *set_limits, "--log-format", "text")
            door = ("--port", str(self.port), "--data", str(self.folder / "data"), "--memory-gib", str(SOLVER_GIB))
            command: Sequence[str] = ("serve", *door, *limits, *database)
        else:
            command = ("worker", *database, "--memory-gib", str(SOLVER_GIB))
        with (self.folder / "log").open("ab") as log:
            self.processes[name] = _open(command, log)
        self.num_starts += 1

    def kill(self, name: str) -> None:
        """SIGKILL, and at once a new one."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name)

    def kill_below(self, role: str) -> bool:
        """SIGKILL to the first solver or helper process that is there."""
        for pid in self.pids().get(role, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def wait_ready(self) -> float:
        """Seconds until `readyz` says yes with a living worker."""
        begin = time.monotonic()
        while not self._is_ready():
            if self.processes[SERVICE].poll() is not None or time.monotonic() > begin + 300:
                raise SystemExit("the service does not start: " + (self.folder / "log").read_text()[-1000:])
            time.sleep(0.2)
        return time.monotonic() - begin

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/readyz?workers=1")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def pids(self) -> dict[str, list[int]]:
        """Processes that live, by role."""
        own = {process.pid: name.partition("-")[0] for name, process in self.processes.items()}
        found: dict[str, list[int]] = {}
        for pid, role in own.items():
            found.setdefault(role, []).append(pid)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _parent(entry) in own:
                arguments = _read(entry / "cmdline").split("\0")
                if "api.jobs.workers.solver_process" in arguments:
                    is_solver = str(int(SOLVER_GIB * 2**30)) in arguments
                    found.setdefault(SOLVER if is_solver else HELPER, []).append(int(entry.name))
        return found

    def footprints(self) -> dict[str, Footprint]:
        """Of every role that has processes now."""
        found = {}
        for role, pids in self.pids().items():
            each = [one for one in map(_footprint, pids) if one is not None]
            if each:
                found[role] = Footprint(
                    num_processes=len(each),
                    resident_bytes=max(one.resident_bytes for one in each),
                    num_descriptors=max(one.num_descriptors for one in each),
                    num_threads=max(one.num_threads for one in each),
                )
        return found

    def close(self) -> None:
        """SIGTERM to all, and SIGKILL to the one that stays."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _open(command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "api", *command], cwd=ROOT, start_new_session=True, stdout=log, stderr=log
    )


def _footprint(pid: int) -> Footprint | None:
    """None for a process that is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        resident = int((folder / "statm").read_text().split()[1]) * PAGE_BYTES
        descriptors = len(os.listdir(folder / "fd"))
        threads = len(os.listdir(folder / "task"))
    except (OSError, IndexError):
        return None
    return Footprint(num_processes=1, resident_bytes=resident, num_descriptors=descriptors, num_threads=threads)


def _parent(folder: Path) -> int | None:
    fields = _read(folder / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
