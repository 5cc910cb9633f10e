"""Who did what to keys, plans and the store: kept for more than a year, readable by the operator only."""

import getpass
import socket
import uuid
from dataclasses import dataclass

from api.jobs.stores.sql_store import freeing
from api.jobs.stores.transactions import Cursor, Database

KEPT_S = 400 * 24 * 3600.0
"""How long an entry is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit log: who did what to what, and when."""

    at: float
    """Seconds since 1970."""
    actor: str
    """`key:ID`, `tenant:NAME` without a key, or `user@host` at the command line."""
    action: str
    """Such as `key.created`, `plan.deleted`, `store.restored`."""
    subject: str
    """To what: a key's id, a plan's id."""
    detail: str
    """More about it, never a secret."""


def operator() -> str:
    """Who sits at the command line."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def record(cursor: Cursor, entry: AuditEntry) -> None:
    """Write it down in the transaction that does it."""
    cursor.execute(
        "INSERT INTO audit (id, at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (uuid.uuid4().hex, entry.at, entry.actor, entry.action, entry.subject, entry.detail[:500]),
    )


class AuditLog:
    """The entries of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, *, actor: str, action: str, subject: str, detail: str = "") -> None:
        """One entry of its own; on a full disk with the room that is kept for deleting."""
        entry = AuditEntry(at=self._database.now(), actor=actor, action=action, subject=subject, detail=detail)
        freeing(self._database, lambda: self._add(entry))

    def _add(self, entry: AuditEntry) -> None:
        with self._database.transaction() as cursor:
            record(cursor, entry)

    def listed(self, *, limit: int) -> list[AuditEntry]:
        """The latest, first to last."""
        rows = self._database.read(
            "SELECT at, actor, action, subject, detail FROM audit ORDER BY at DESC, id LIMIT ?", (limit,)
        )
        names = ("at", "actor", "action", "subject", "detail")
        return [AuditEntry(**dict(zip(names, row, strict=True))) for row in reversed(rows)]

    def expire(self) -> None:
        """Remove what is older than `KEPT_S`."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM audit WHERE at < ?", (self._database.now() - KEPT_S,))
