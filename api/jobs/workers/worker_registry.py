"""Which workers live: each says so every few seconds, in the store that all share."""

from dataclasses import dataclass

from api.jobs.stores.transactions import Database

BEAT_S = 5.0
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

    def strength(self) -> Strength:
        """The workers alive now, and their free slots."""
        row = self._database.read_first(
            "SELECT COUNT(*), COALESCE(SUM(num_slots), 0) FROM workers WHERE seen_at > ?",
            (self._database.now() - SILENT_S,),
        )
        return Strength(num_workers=int(row[0] if row else 0), num_slots=int(row[1] if row else 0))
