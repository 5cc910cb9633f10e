"""A PostgreSQL server of the tests' own: Debian's programs, a temporary folder, an unprivileged user."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psycopg

USER = "postgres"
"""Who runs the server where the tests run as root, who may not."""


def find_programs() -> Path | None:
    """The folder that holds initdb and postgres."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class PostgresServer:
    """One server, many databases."""

    def __init__(self, *, is_durable: bool = False) -> None:
        """A durable server waits for the disk, as a real one does; tests do not need that."""
        self._fsync = "on" if is_durable else "off"
        programs = find_programs()
        assert programs is not None, "PostgreSQL's server is missing: apt-get install postgresql (make test does it)"
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._owner = pwd.getpwnam(USER) if os.getuid() == 0 else None
        if self._owner is not None:
            os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        self._run("initdb", "--auth=trust", "--username=tester", "--encoding=UTF8", "--no-sync", "-D", self._data)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _demote(self) -> dict[str, object]:
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._demote(),  # type: ignore[call-overload]
        )

    def start(self) -> None:
        """Start the server and wait until it answers; it listens on a socket in its folder only."""
        self._process = subprocess.Popen(
            [
                *(str(self._programs / "postgres"), "-D", self._data, "-k", str(self.folder)),
                *("-c", "listen_addresses=", "-c", f"fsync={self._fsync}", "-c", "max_connections=200"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            **self._demote(),  # type: ignore[call-overload]
        )
        until = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert time.monotonic() < until, "PostgreSQL does not start"
                time.sleep(0.05)
            else:
                return

    def url(self, database: str) -> str:
        """How to reach a database."""
        return f"postgresql://tester@/{database}?host={self.folder}"

    def fresh_database(self) -> str:
        """The address of a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def dump(self, url: str) -> str:
        """A database as statements, without what only `psql` reads."""
        command = [str(self._programs / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", url]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("\\"))

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT drops its clients, SIGQUIT is a crash."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
