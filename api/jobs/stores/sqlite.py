"""The default database: one SQLite file beside its write-ahead log, and a lock that one service holds."""

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from api.jobs.job import DamagedError
from api.jobs.stores.batch_size import Portion
from api.jobs.stores.connections import Connections
from api.jobs.stores.reserve import Reserve
from api.jobs.stores.store import StoreFullError
from api.jobs.stores.transactions import Cursor, Database

_BUSY_TIMEOUT_S = 10.0
"""How long a writer waits for another."""

FREED_PAGES, LEAST_PAGES = 5000, 50
"""Pages that leave the file in one transaction, at most and at least."""

_FREEING_S = 0.2
"""How long that may take: with many free pages, finding the right one takes longer, so fewer leave at once."""

GIVING_S = 30.0
"""How long free pages leave the file in one go; the next housekeeping continues."""

LOG_PAGES, PAGE_BYTES = 1000, 4096
"""Pages of the write-ahead log after which the database takes them up, and their size: SQLite's own defaults."""

_LOG_SHARE = 4
"""On a small disk that is after one part in so many of the reserve, so that it suffices for the log and a deletion."""

PAUSE_S = 0.12
"""Between transactions of housekeeping: who waits for the file looks again every tenth of a second at the latest."""


class SqliteDatabase(Database):
    """A commit is on the disk before it returns."""

    row_lock = ""  # a writing transaction has the file to itself

    def __init__(self, path: Path) -> None:
        self.path, self._reserve = path, Reserve(path.parent)
        self.connections = Connections(self._connect)

    def _connect(self) -> sqlite3.Connection:
        """To open the file takes room, too."""
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            meaning = _meaning_of(error)
            if not isinstance(meaning, StoreFullError) or not self.give_up_reserve():
                raise meaning from error
        return self._open()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,  # each is one thread's at a time
        )
        try:
            self._prepare(connection)
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if not connection.execute("PRAGMA page_count").fetchone()[0]:  # said again, it would write a page each time
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # What stands in the log alone takes room a second time when the database takes it up.
        pages = min(LOG_PAGES, self._reserve.size() // (_LOG_SHARE * PAGE_BYTES))
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        # Debian's SQLite writes zeros over all that is deleted, through the log: as much again as there was.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.create_function("LOWER", 1, _lower, deterministic=True)

    @contextmanager
    def transaction(self, *, is_writing: bool = True) -> Iterator[Cursor]:
        """Writers queue up at the beginning, so that none fails in the middle."""
        with self.connections.one() as connection, closing(connection.cursor()) as cursor:
            try:
                cursor.execute("BEGIN IMMEDIATE" if is_writing else "BEGIN")
                yield cursor
                cursor.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise _meaning_of(error) from error
            finally:
                if connection.in_transaction:
                    connection.rollback()

    @contextmanager
    def picture(self) -> Iterator[Cursor]:
        """A read transaction: with a write-ahead log, writers continue meanwhile."""
        with self.transaction(is_writing=False) as cursor:
            yield cursor

    def begin_housekeeping(self, cursor: Cursor, *, given_up: int = 0) -> None:
        """SQLite knows no such thing within a transaction; what one of expiry writes is small."""

    def lock_schema(self, cursor: Cursor) -> None:
        """A writing transaction is alone anyway."""

    def lock_tenant(self, cursor: Cursor, tenant: str) -> None:
        """A writing transaction is alone anyway."""

    def columns(self, cursor: Cursor, table: str) -> set[str]:
        """The table's columns; an empty set if it does not exist."""
        cursor.execute("SELECT name FROM pragma_table_info(?)", (table,))
        return {str(row[0]) for row in cursor.fetchall()}

    def give_space_back(self, *, seconds: float = GIVING_S) -> None:
        """Free pages leave the file a few at a time, where it was made so that they can, for so long at most."""
        with self.connections.one() as connection:
            try:
                self._free_pages(connection, seconds=seconds)
            except sqlite3.DatabaseError as error:
                raise _meaning_of(error) from error

    def _free_pages(self, connection: sqlite3.Connection, *, seconds: float) -> None:
        portion = Portion(least=LEAST_PAGES, most=FREED_PAGES, goal_s=_FREEING_S)
        until = time.monotonic() + seconds
        while connection.execute("PRAGMA freelist_count").fetchone()[0] and time.monotonic() < until:
            before, begin = connection.execute("PRAGMA page_count").fetchone()[0], time.monotonic()
            connection.executescript(f"PRAGMA incremental_vacuum({portion.size})")  # `execute` would free one page
            if connection.execute("PRAGMA page_count").fetchone()[0] == before:
                return
            took_s = time.monotonic() - begin
            portion.learn(took_s)
            self.let_others_in(took_s)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def keep_reserve(self) -> None:
        """A file beside the database."""
        self._reserve.keep()

    def give_up_reserve(self) -> bool:
        """The file goes."""
        return self._reserve.give_up()

    def is_full(self) -> bool:
        """Whether the reserve cannot be made whole, or would not fit a second time."""
        self._reserve.keep()
        return self._reserve.is_short()

    def let_others_in(self, worked_s: float) -> None:
        """SQLite's waiting writers poll, and without a pause would never meet a moment when the file is free."""
        time.sleep(max(PAUSE_S, worked_s))

    def now(self) -> float:
        """This machine's clock: nobody else shares the file."""
        return time.time()

    def lease_now(self) -> float:
        """No step of the clock ends a lease; a service that starts puts all leases of the last one back."""
        return time.monotonic()


def _lower(text: Any) -> Any:
    """As Python writes it: SQLite's own knows letters of ASCII only."""
    return text.lower() if isinstance(text, str) else text


_DAMAGED = ("Could not decode", "malformed", "not a database")


def _meaning_of(error: sqlite3.DatabaseError) -> Exception:
    """What SQLite's words say about the store."""
    text = str(error)
    if "full" in text or "disk I/O" in text:
        return StoreFullError(text)
    if any(each in text for each in _DAMAGED):
        return DamagedError("the file of the store")
    return error


class FolderLock:
    """Held by the one service that works on a data folder; the kernel releases it when the process dies."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "lock", "a")  # noqa: SIM115 held until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(f"{folder}: another service uses this folder; stop it, or give another --data") from None

    def close(self) -> None:
        """Let another service have the folder."""
        self._file.close()
