"""What the statements of the store run on: transactions of a database, and the cursors in them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from api.jobs.stores.connections import Connections

Row = Any


class Cursor(Protocol):
    """What both drivers offer inside a transaction."""

    @property
    def rowcount(self) -> int:
        """Rows that the last statement touched."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement; a question mark stands for a parameter."""

    def fetchone(self) -> Row | None:
        """The next row, if there is one."""

    def fetchall(self) -> list[Row]:
        """The rows that are left."""

    def fetchmany(self, size: int) -> list[Row]:
        """So many rows, or as many as are left."""


class Database(Protocol):
    """Transactions that see and write all or nothing, and a clock."""

    connections: Connections[Any]
    row_lock: str
    """What follows a SELECT whose row nobody else may change until the transaction ends."""

    def transaction(self, *, is_writing: bool = True) -> AbstractContextManager[Cursor]:
        """Commits at the end, rolls back on an exception."""

    def picture(self) -> AbstractContextManager[Cursor]:
        """All that is read is as it stood at one moment, however long it takes, and nobody waits for it."""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows of one SELECT, in a transaction of its own."""
        with self.transaction(is_writing=False) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

    def read_first(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """As `read` for statements that ask about one thing; None if nothing matches."""
        return next(iter(self.read(sql, parameters)), None)

    def lock_schema(self, cursor: Cursor) -> None:
        """Until the transaction ends, nobody else makes tables."""

    def begin_housekeeping(self, cursor: Cursor, *, given_up: int = 0) -> None:
        """This transaction is done again if need be: its commit does not wait for the disk, and it raises GivenUpError
        where the database stands still in the middle of it, for longer the more often it was `given_up` before.
        """

    def columns(self, cursor: Cursor, table: str) -> set[str]:
        """The table's columns; an empty set if it does not exist."""

    def give_space_back(self, *, seconds: float = ...) -> None:
        """What was removed no longer takes room; what is left after so long waits for the next time."""

    def keep_reserve(self) -> None:
        """Keep room for deleting, where that takes some and the disk has it."""

    def give_up_reserve(self) -> bool:
        """Let others have that room; False if there is none."""

    def is_full(self) -> bool:
        """Whether there is no room for the next job."""

    def let_others_in(self, worked_s: float) -> None:
        """Between transactions of housekeeping, the last of which took so long: the one that waits comes first."""

    def lock_tenant(self, cursor: Cursor, tenant: str) -> None:
        """Until the transaction ends, nobody else stores a job of the tenant."""

    def now(self) -> float:
        """Seconds since 1970, the same for every process that shares the database."""

    def lease_now(self) -> float:
        """What leases are measured by: `now`, unless nobody shares the database."""
        return self.now()

    def close_all(self) -> None:
        """Close all connections; nobody may use the database any more."""
        self.connections.close_all()
