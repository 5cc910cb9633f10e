"""Jobs in PostgreSQL: the same rows as in SQLite, and procrastinate to bring them to workers on any machine.

A ticket is a procrastinate task that means "one more job waits": heartbeats, wake-ups, retries of tickets whose worker
died and periodic tasks are procrastinate's. What procrastinate 3.10 does not do by itself stands in the rows of jobs
(tests/api/jobs/stores/test_postgres.py shows both on its own tables). A queue for each tenant, and an end that locks
the ticket by its worker and attempt, would do both, but every state would stand in two tables:

* Tickets are taken by priority and age alone, so a tenant with a hundred jobs would keep all others waiting. So a
  ticket carries no job: the one that gets one claims the job whose turn it is, by the same rule as on SQLite.
* A worker that was frozen ends its ticket when it thaws, though another one has been given it, and the other's end
  fails then. So a job has a fencing token, and every statement of its worker names it. The embedded default on SQLite
  goes by the same lease.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import procrastinate
import psycopg
from psycopg import sql

from api.jobs.job import DamagedError
from api.jobs.stores.connections import Connections
from api.jobs.stores.store import OPENING_S, GivenUpError, StoreFullError, persistently
from api.jobs.stores.transactions import Cursor, Database

logger = logging.getLogger(__name__)

QUEUE = "plans"
TASK = "pipeplan.solve_next"

_FROZEN_S = 10.0
"""A session that stands still for so long in the middle of a transaction loses it, and with it its locks."""


_COMPRESS_FAST = """SELECT set_config(name, 'lz4', false) FROM pg_settings
    WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)"""
"""Measured: a text of 2 MB costs the server 8 to 11 ms with lz4, 30 to 42 ms with its default; sizes are alike."""

HOUSEKEEPING_S = 0.3
"""What a statement of housekeeping may take at first. Some stood still for a second, while checkpoints kept the disk
busy."""

_OTHERS_SHARE = 2.0
"""How long housekeeping pauses for each second that it worked."""

EVEN_S = 10.0
"""How long two clocks run evenly; then they are held against each other again, for the server's may be set anew."""

_STEP_S = 0.5
"""By so much our own clock was set anew, or this machine stood still."""


_TICKET_TRIES = 3
"""How often a ticket is put up: a job without one is found, too."""

_DAMAGED = (
    psycopg.errors.DataCorrupted,
    psycopg.errors.IndexCorrupted,
    psycopg.errors.CharacterNotInRepertoire,
    psycopg.errors.UntranslatableCharacter,
    UnicodeDecodeError,
)
"""What the server, or the driver, raises for rows that cannot be read."""

_RESERVE_BYTES = 4 * 2**20
"""What is kept for deleting on a full disk: room for a few pages of notes about what was deleted."""

_FULL_S = 60.0
"""So long after the server's disk was full it may be so still."""


class PostgresDatabase(Database):
    """A connection that broke is made anew with the next transaction."""

    row_lock = " FOR UPDATE"

    def __init__(self, url: str, *, frozen_s: float = _FROZEN_S) -> None:
        self.url, self._frozen_s = url, frozen_s
        self.connections = Connections(
            self._connect, is_usable=lambda connection: not (connection.closed or connection.broken)
        )
        self._offset_s, self._step_s, self._offset_until = 0.0, 0.0, float("-inf")
        self._full_until = float("-inf")

    def _connect(self) -> "psycopg.Connection[Any]":
        connection = psycopg.connect(self.url, autocommit=True, connect_timeout=5)
        limit = sql.Literal(round(1000 * self._frozen_s))
        connection.execute(sql.SQL("SET idle_in_transaction_session_timeout = {}").format(limit))
        connection.execute(_COMPRESS_FAST)
        return connection

    @contextlib.contextmanager
    def transaction(self, *, is_writing: bool = True) -> Iterator[Cursor]:
        """Read committed; what must not happen twice is guarded by the statements themselves."""
        del is_writing
        try:
            with self.connections.one() as connection, connection.transaction(), _Cursor(connection) as cursor:
                yield cursor
        except psycopg.errors.QueryCanceled as error:
            raise GivenUpError(str(error)) from error
        except psycopg.errors.DiskFull as error:
            self._full_until = time.monotonic() + _FULL_S
            raise StoreFullError(str(error)) from error
        except _DAMAGED as error:
            raise DamagedError("a table of the database") from error

    @contextlib.contextmanager
    def picture(self) -> Iterator[Cursor]:
        """Repeatable read, with rows that come as they are asked for."""
        with self.connections.one() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            with _PictureCursor(connection, "picture") as cursor:
                yield cursor

    def lock_schema(self, cursor: Cursor) -> None:
        """`IF NOT EXISTS` alone does not keep two processes that start together apart."""
        cursor.execute("SELECT pg_advisory_xact_lock(7216)")

    def lock_tenant(self, cursor: Cursor, tenant: str) -> None:
        """Two that store at once would both count before either has stored."""
        cursor.execute("SELECT pg_advisory_xact_lock(7217, hashtext(?))", (tenant,))

    def begin_housekeeping(self, cursor: Cursor, *, given_up: int = 0) -> None:
        """Rows stay locked while a commit waits for the disk, or a statement for a checkpoint."""
        cursor.execute("SET LOCAL synchronous_commit = off")
        patience_s = HOUSEKEEPING_S * (1 + given_up / 2)  # one large job may need it: within 1 s after `GIVEN_UP` times
        cursor.execute(f"SET LOCAL statement_timeout = {round(1000 * patience_s)}")

    def columns(self, cursor: Cursor, table: str) -> set[str]:
        """The table's columns; an empty set if it does not exist."""
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = ? AND table_schema = ANY "
            "(current_schemas(false))",
            (table,),
        )
        return {str(row[0]) for row in cursor.fetchall()}

    def give_space_back(self, *, seconds: float = 0.0) -> None:
        """PostgreSQL's own autovacuum lets the next rows have the room."""

    def keep_reserve(self) -> None:
        """A table of no use but its size: the disk is the server's, and all that we may do is done by statements."""
        with self.transaction() as cursor:
            self.lock_schema(cursor)
            if not self.columns(cursor, "reserve"):
                cursor.execute("CREATE TABLE reserve (bytes BYTEA NOT NULL)")
                cursor.execute("INSERT INTO reserve (bytes) VALUES (?)", (os.urandom(_RESERVE_BYTES),))

    def give_up_reserve(self) -> bool:
        """The table goes; to empty it would take a page of a new one."""
        with self.transaction() as cursor:
            self.lock_schema(cursor)
            is_there = bool(self.columns(cursor, "reserve"))
            if is_there:
                cursor.execute("DROP TABLE reserve")
            return is_there

    def is_full(self) -> bool:
        """Whether the server said so lately."""
        return time.monotonic() < self._full_until

    def let_others_in(self, worked_s: float) -> None:
        """Nobody waits for rows, which are locked one by one, but all wait for the disk: most of its time is theirs."""
        time.sleep(_OTHERS_SHARE * worked_s)

    def now(self) -> float:
        """The database's clock, as far as ours runs evenly with it for `EVEN_S`."""
        step_s = time.time() - time.monotonic()
        if time.monotonic() >= self._offset_until or abs(step_s - self._step_s) > _STEP_S:
            row = self.read_first("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)")
            self._offset_s = float(row[0] if row else 0.0) - time.time()
            self._step_s, self._offset_until = step_s, time.monotonic() + EVEN_S
        return time.time() + self._offset_s


class _Cursor(psycopg.Cursor[Any]):
    """Question marks become psycopg's placeholders."""

    def execute(self, query: Any, params: Any = (), **options: Any) -> Any:
        """Run one statement."""
        return super().execute(sql.SQL(query.replace("?", "%s")), params, **options)


class _PictureCursor(_Cursor, psycopg.ServerCursor[Any]):
    """The same with a cursor on the server for every statement, so that a large table does not come all at once."""


def prepare(url: str) -> None:
    """Make procrastinate's tables if there are none yet; several processes may try at once."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(7215)")
        row = connection.execute("SELECT to_regclass('procrastinate_jobs') IS NULL").fetchone()
        if row is not None and row[0]:
            app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
            with app.open():
                app.schema_manager.apply_schema()
        connection.execute("SELECT pg_advisory_unlock(7215)")


class PostgresEngine:
    """The service's side of the queue: it announces, and workers elsewhere do the rest."""

    def __init__(self, database: PostgresDatabase) -> None:
        """Tickets go up on the database's connections, which are the store's; the app itself is never opened."""
        self._database = database
        self._app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())

    def start(self) -> None:
        """Make the queue; a server that goes away meanwhile is waited for."""
        persistently(lambda: prepare(self._database.url), seconds=OPENING_S)

    def announce(self) -> None:
        """Put a ticket up; if that fails, the workers' look around finds the job."""
        for _ in range(_TICKET_TRIES):
            try:
                with self._database.connections.one() as connection:
                    self._app.configure_task(TASK, queue=QUEUE, connection=connection).defer()
            except (procrastinate.exceptions.ConnectorException, psycopg.Error):
                logger.warning("the ticket could not be put up", exc_info=True)
                time.sleep(0.2)
            else:
                return

    def drain(self) -> None:
        """Nothing to stop here."""

    def close(self) -> None:
        """Nothing to close here."""
