"""A service in processes of its own, which can be killed, frozen and started again, one by one."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from api.client import Client
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from tests.api.forked_solvers import fork_command, fork_program, forker
from tests.forking import ForkedProcess
from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Site:
    """Processes of one service, by role: `api`, `worker-0`, `worker-1` ..."""

    folder: Path
    url: str | None = None
    """PostgreSQL; None: SQLite, and the workers in the process of the API."""
    num_workers: int = 1
    port: int = field(default_factory=free_port)
    is_forked: bool = True
    """Whether its processes are forks of one that has loaded what they need."""
    processes: dict[str, "subprocess.Popen[bytes] | ForkedProcess"] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        """One that asks again for as long as a service may need to start."""
        return Client(f"http://127.0.0.1:{self.port}", num_tries=10)

    @contextmanager
    def store(self) -> Iterator[SqlStore]:
        """The service's own database, seen from here."""
        file = self.folder / "data" / "pipeplan.sqlite"
        made = SqlStore(PostgresDatabase(self.url) if self.url else SqliteDatabase(file))
        try:
            yield made
        finally:
            made.close_all()

    def start(self, role: str) -> None:
        """A process; what it says goes to the site's log."""
        with (self.folder / "log").open("ab") as log:
            if not self.is_forked:
                command = [sys.executable, "-m", "api", *self.command(role)]
                self.processes[role] = subprocess.Popen(
                    command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log
                )
            elif role == "api":
                self.processes[role] = fork_command(*self.command(role), log=log.fileno())
            else:
                self.processes[role] = fork_program("tests.api.jobs.hasty_worker", str(self.url), log=log.fileno())

    def command(self, role: str) -> list[str]:
        """What `pipeplan` is told; workers alone are another program."""
        more = [] if self.url is None else ["--database-url", self.url]
        return ["serve", "--port", str(self.port), "--data", str(self.folder / "data"), *more]

    def start_all(self) -> None:
        """The API, and workers where they are on their own."""
        for role in ("api", *(f"worker-{number}" for number in range(self.num_workers if self.url else 0))):
            self.start(role)
        self.client.capabilities()

    def kill(self, role: str) -> None:
        """SIGKILL, and at once a new one."""
        self.processes[role].kill()
        self.processes[role].wait()
        self.start(role)

    def kill_a_solver(self, chance: random.Random) -> None:
        """SIGKILL to one of the processes below ours."""
        solvers = [pid for process in self.processes.values() for pid in forker().forks_of(process.pid)]
        if solvers:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(sorted(solvers)), signal.SIGKILL)

    def freeze(self, role: str) -> None:
        """The process stands still, and so do its threads, whatever they are doing."""
        self.processes[role].send_signal(signal.SIGSTOP)

    def thaw(self, role: str) -> None:
        """It goes on as if nothing had happened."""
        self.processes[role].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """SIGTERM, at which every process ends in good order."""
        for process in self.processes.values():
            process.terminate()
        ends = {role: process.wait(90) for role, process in self.processes.items()}
        assert not any(ends.values()), f"exit codes {ends}; {(self.folder / 'log').read_text()[-20_000:]}"

    def abandon(self) -> None:
        """Leave nothing behind."""
        for process in self.processes.values():
            process.kill()
            process.wait()
