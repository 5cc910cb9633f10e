"""Rows of `jobs` and of their stories, read and written inside a transaction."""

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from api.jobs.job import Job

if TYPE_CHECKING:
    from api.jobs.sql_store import Cursor, Row

COLUMNS = ", ".join(field.name for field in fields(Job))
"""What is read of a job."""

FLAGS = {"is_deterministic", "is_pinned", "is_stopped"}
"""Columns that stand as 0 and 1."""


def job_of_row(row: "Row | None") -> Job | None:
    """The job of a row with `COLUMNS`."""
    if row is None:
        return None
    values: dict[str, Any] = dict(zip((field.name for field in fields(Job)), row, strict=True))
    return Job(**values | {name: bool(values[name]) for name in FLAGS})


def find_job(cursor: "Cursor", job_id: str, *, lock: str = "") -> Job | None:
    """A job by its number."""
    cursor.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?{lock}", (job_id,))
    return job_of_row(cursor.fetchone())


def tell_event(cursor: "Cursor", job_id: str, *, kind: str, now: float, data: dict[str, Any]) -> None:
    """The next event of the job's story; whoever writes one holds the job's row."""
    cursor.execute(
        "INSERT INTO events (job_id, seq, kind, at, data) "
        "SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, ?, ? FROM events WHERE job_id = ?",
        (job_id, kind, now, json.dumps(data), job_id),
    )
