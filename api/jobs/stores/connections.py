"""A connection per thread: opened when the thread first needs it, and known, so that all of them can be closed."""

import sqlite3
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import psycopg

C = TypeVar("C", bound="sqlite3.Connection | psycopg.Connection[Any]")


class ThreadConnections(Generic[C]):
    """The connections of one database, one for each thread that asks."""

    def __init__(self, connect: Callable[[], C], *, is_usable: Callable[[C], bool] = lambda _: True) -> None:
        """`connect` opens one; a connection that is no longer `is_usable` is closed, and its thread gets another."""
        self._connect, self._is_usable = connect, is_usable
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[C] = []

    def get(self) -> C:
        """The calling thread's connection."""
        connection: C | None = getattr(self._local, "connection", None)
        if connection is not None and self._is_usable(connection):
            return connection
        self.close()
        connection = self._connect()
        self._local.connection = connection
        with self._lock:
            self._open.append(connection)
        return connection

    def close(self) -> None:
        """Close the calling thread's connection."""
        connection: C | None = getattr(self._local, "connection", None)
        if connection is None:
            return
        self._local.connection = None
        with self._lock:
            if connection in self._open:
                self._open.remove(connection)
        connection.close()

    def close_all(self) -> None:
        """Close every thread's connection; nobody may use the database any more."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
        self._local = threading.local()
