"""The processes of a service that is used hard: started, killed, watched from outside through /proc."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from api.client import ServerError
from tests.api.service.site import Site

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVICE, WORKER, SOLVER, HELPER = "api", "worker", "solver", "helper"
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


@dataclass(kw_only=True)
class SoakSite(Site):
    """A service with jobs that expire soon; with PostgreSQL two workers of its own beside it."""

    num_workers: int = 2
    is_forked: bool = False
    retention_s: float
    limits: tuple[str, ...] = ("hourly_jobs=1000000",)
    """As `--limit` takes them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Processes that an operator starts."""
        return (SERVICE,) if self.url is None else (SERVICE, f"{WORKER}-0", f"{WORKER}-1")

    def command(self, role: str) -> list[str]:
        """Of a process that is no fork."""
        cap = ["--memory-gib", str(SOLVER_GIB)]
        if role != SERVICE:
            return ["worker", "--database-url", str(self.url), *cap]
        set_limits = [part for limit in self.limits for part in ("--limit", limit)]
        days = f"{self.retention_s / 86400:.6f}"
        return [*super().command(role), *cap, "--retention-days", days, *set_limits, "--log-format", "text"]

    def kill_below(self, role: str) -> bool:
        """SIGKILL to the first solver or helper process that is there."""
        for pid in self.pids().get(role, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def wait_ready(self) -> None:
        """Until `readyz` says yes with a living worker."""
        until = time.monotonic() + 300
        while True:
            try:
                self.client._bytes("GET", "/readyz?workers=1")
            except (ServerError, OSError):
                if self.processes[SERVICE].poll() is not None or time.monotonic() > until:
                    said = (self.folder / "log").read_text()[-1000:]
                    raise SystemExit(f"the service does not start: {said}") from None
                time.sleep(0.2)
            else:
                return

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
