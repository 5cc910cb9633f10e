"""Which workers live: each says so every few seconds, in the store that all share."""

import logging
import threading
from dataclasses import dataclass

from api.jobs.stores.store import STORE_FAILURES
from api.jobs.stores.transactions import Database

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
"""How often a worker says that it lives."""

SILENT_S = 20.0
"""A worker that has said nothing for so long does not count."""

_FORGET_S = 3600.0
"""And after so long its row goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """Who works on the jobs of a store."""

    num_workers: int
    """Processes that live."""
    num_slots: int
    """Jobs that they solve at once."""


class WorkerRegistry:
    """The workers of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, name: str, *, num_slots: int) -> None:
        """Note that the worker is alive at this moment."""
        now = self._database.now()
        with self._database.transaction() as cursor:
            cursor.execute(
                "INSERT INTO workers (name, num_slots, started_at, seen_at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, num_slots = excluded.num_slots",
                (name, num_slots, now, now),
            )
            cursor.execute("DELETE FROM workers WHERE seen_at < ?", (now - _FORGET_S,))

    def leave(self, name: str) -> None:
        """The worker ends in good order."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM workers WHERE name = ?", (name,))

    def clear(self) -> None:
        """Nobody works: the store has one service, which begins now."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM workers")

    def strength(self) -> Strength:
        """The workers alive now, and their free slots."""
        row = self._database.read_first(
            "SELECT COUNT(*), COALESCE(SUM(num_slots), 0) FROM workers WHERE seen_at > ?",
            (self._database.now() - SILENT_S,),
        )
        return Strength(num_workers=int(row[0] if row else 0), num_slots=int(row[1] if row else 0))

    def close(self) -> None:
        """Release the calling thread's connection."""
        self._database.close()


class Heartbeat:
    """A thread that says that a worker lives, until it is stopped; a store that is away is told later."""

    def __init__(self, registry: WorkerRegistry, name: str, *, num_slots: int) -> None:
        self._registry, self._name, self._num_slots = registry, name, num_slots
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._registry.beat(self._name, num_slots=self._num_slots)
            except STORE_FAILURES as error:
                logger.warning("the store did not hear that this worker lives: %r", error)
            if self._over.wait(_BEAT_S):
                break
        try:
            self._registry.leave(self._name)
        except STORE_FAILURES as error:
            logger.warning("the store did not hear that this worker ends: %r", error)
        finally:
            self._registry.close()

    def stop(self) -> None:
        """Say good-bye, and wait until that is said."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
