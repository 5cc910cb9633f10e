"""The open connections of one database: each is one caller's at a time, and known, so that all can be closed."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import psycopg

C = TypeVar("C", bound="sqlite3.Connection | psycopg.Connection[Any]")


class Connections(Generic[C]):
    """As many as are in use at once; the one that was used last is used next."""

    def __init__(self, connect: Callable[[], C], *, is_usable: Callable[[C], bool] = lambda _: True) -> None:
        """`connect` opens one; a connection that is no longer `is_usable` is left to itself."""
        self._connect, self._is_usable = connect, is_usable
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._open: list[C] = []

    @contextmanager
    def one(self) -> Iterator[C]:
        """A connection that nobody else uses meanwhile."""
        connection = self._take()
        try:
            yield connection
        finally:
            with self._lock:
                if connection in self._open:  # not closed meanwhile
                    self._idle.append(connection)

    def warm_up(self, count: int) -> None:
        """Have so many open: as many callers at once wait for none."""
        with ExitStack() as held:
            for _ in range(count):
                held.enter_context(self.one())

    def _take(self) -> C:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if self._is_usable(connection):
                    return connection
                self._open.remove(connection)
        connection = self._connect()
        with self._lock:
            self._open.append(connection)
        return connection

    def close_all(self) -> None:
        """Close every connection; nobody may use the database any more."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
            self._idle.clear()
