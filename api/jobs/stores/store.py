"""What a store raises, and how long one that is away is waited for."""

import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from api.jobs.job import DamagedError


class IdempotencyConflictError(Exception):
    """The same idempotency key came with another body."""


class QuotaError(Exception):
    """The tenant has as much as it may; `code` names the limit and `most` says how much that is."""

    def __init__(self, code: str, most: int) -> None:
        super().__init__(f"{code}: {most:,}")
        self.code, self.most = code, most


class UnknownPageError(Exception):
    """A page is to follow a job that is not there, and nothing says when that was submitted."""


class StoreFullError(Exception):
    """There is no room to write what was asked for."""


class GivenUpError(Exception):
    """Housekeeping took longer than others may wait for it; nothing of the transaction was done."""


def _failures() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [sqlite3.Error, StoreFullError, DamagedError, GivenUpError]
    try:
        import psycopg
    except ImportError:  # the extra `postgres` is not installed
        return tuple(found)
    return (*found, psycopg.Error)


STORE_FAILURES = _failures()
"""What a store raises that is full, damaged or cannot be reached: not our mistake, and perhaps over in a moment."""


OPENING_S = 60.0
"""How long a store is waited for that goes away while a process starts, after it was there."""

_T = TypeVar("_T")


def persistently(act: Callable[[], _T], *, seconds: float) -> _T:
    """Do it, again and again for so long while the store is away; what was done all the same is not done twice."""
    until = time.monotonic() + seconds
    while True:
        try:
            return act()
        except DamagedError:
            raise
        except STORE_FAILURES:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
