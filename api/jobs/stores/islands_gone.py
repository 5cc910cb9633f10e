"""What stores up to version 7 held of islands, searches of several workers for one job: left out on the way here."""

from typing import Any

from api.jobs.stores.hashes import hash_of_row
from api.jobs.stores.transactions import Cursor

ISLANDS = "islands"
"""The table of those stores, and the last column of jobs that their hashes cover."""

HASHED = (
    *("id", "tenant", "name", "problem_key", "request_key", "is_deterministic", "priority", "base_id", "change"),
    *("created_at", "finished_at", "incumbent_ns", "lower_bound_ns", "gap", "source", "solution_status"),
    *("stopped_by", "error", "plan_sha256", "request_id", "project", "tags", "profile_sha256", "solver_bound_ns"),
)
"""The columns that their hashes, and those of today, cover, in order."""


def without_islands(values: dict[str, Any]) -> dict[str, Any]:
    """The columns of a job of such a store as they stand now; only of a row that was sound the hash is made anew."""
    kept = {name: value for name, value in values.items() if name != ISLANDS}
    hashed = [values.get(name) for name in HASHED]
    if values.get("row_sha256") == hash_of_row([*hashed, values[ISLANDS]]):
        while hashed[-1] is None:
            hashed.pop()
        kept["row_sha256"] = hash_of_row(hashed)
    return kept


def drop_islands(cursor: Cursor) -> None:
    """Lead a store of version 7 to the next one."""
    names = [*HASHED, ISLANDS, "row_sha256"]
    cursor.execute(f"SELECT {', '.join(names)} FROM jobs WHERE row_sha256 IS NOT NULL")
    for row in cursor.fetchall():
        kept = without_islands(dict(zip(names, row, strict=True)))
        cursor.execute("UPDATE jobs SET row_sha256 = ? WHERE id = ?", (kept["row_sha256"], kept["id"]))
    cursor.execute("ALTER TABLE jobs DROP COLUMN islands")
    cursor.execute("DROP TABLE IF EXISTS islands")
