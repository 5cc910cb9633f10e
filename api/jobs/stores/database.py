"""The database of a service: opened, waited for where it starts later, refused where it is not ours."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Database

FILE = "pipeplan.sqlite"
"""Name of the SQLite file in the data folder."""

PAUSE_S = 0.5
"""Between two tries to reach a server."""

TOLD_EVERY_S = 5.0
"""Between two words about waiting."""

_FOR_GOOD = ("authentication failed", "does not exist", "no pg_hba.conf entry")
"""What a server says that waiting does not mend."""


def open_database(data: Path, url: str | None) -> Database:
    """PostgreSQL where a URL is given, else the SQLite file of the data folder, which is made.

    Raises ValueError for a SQLite file that is broken, or another program's.
    """
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    if url is not None:
        from api.jobs.stores.postgres import PostgresDatabase

        return PostgresDatabase(url)
    _require_own_file(data / FILE)
    return SqliteDatabase(data / FILE)


def _require_own_file(path: Path) -> None:
    """Raise ValueError unless the file is missing, empty, or a store of this program that can be read."""
    if not path.exists() or path.stat().st_size == 0:
        return
    remedy = "move it away (a new store is made), put a backup in its place, or give another --data"
    try:
        connection = sqlite3.connect(path)
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = {str(row[0]) for row in rows}
            if "jobs" in tables:
                connection.execute("SELECT id, state FROM jobs LIMIT 1").fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if "full" in str(error) or "disk I/O" in str(error):
            return  # to look takes room, too; the one that opens it may have some
        raise ValueError(f"{path}: cannot be read as a pipeplan store ({error}); {remedy}") from None
    if tables and "jobs" not in tables:
        raise ValueError(f"{path}: is a database of another program (table {min(tables)!r}); {remedy}")


def await_server(url: str, *, wait_s: float, tell: Callable[[str], None]) -> None:
    """Return once the PostgreSQL server takes connections; `tell` hears now and then that it does not yet.

    Raises ValueError after `wait_s`, or at once where it answers what waiting does not mend.
    """
    import psycopg

    begin = told = time.monotonic()
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            reason = " ".join(str(error).split())[:200]
            now = time.monotonic()
            if any(phrase in reason for phrase in _FOR_GOOD):
                raise ValueError(f"--database-url: the server refuses: {reason}") from None
            if now - begin >= wait_s:
                raise ValueError(
                    f"--database-url: no server after {wait_s:g} s of waiting: {reason}; start it, correct the URL, or "
                    "wait longer with --wait-for-database"
                ) from None
        except psycopg.Error as error:
            raise ValueError(f"--database-url: {' '.join(str(error).split())[:200]}") from None
        if now - told >= TOLD_EVERY_S:
            told = now
            tell(f"waiting for the database: {reason}")
        time.sleep(PAUSE_S)
