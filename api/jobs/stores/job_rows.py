"""Rows of `jobs` and of their stories, read and written inside a transaction.

What is read is held against what was written: types, words, JSON, and hashes where they are stored.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from api.jobs.job import DamagedError, Event, Job, State
from api.jobs.stores.transactions import Cursor, Row

COLUMNS = ", ".join(field.name for field in fields(Job))
"""What is read of a job."""

FLAGS = {"is_deterministic", "is_pinned", "is_stopped"}
"""Columns that stand as 0 and 1."""


def _kinds_of_columns() -> dict[str, tuple[type, ...]]:
    """The types that a value of each column may have."""
    hints = get_type_hints(Job) | {"state": str}
    kinds = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {name: (*kind, int) if {float, bool} & set(kind) else kind for name, kind in kinds.items()}


_KINDS = _kinds_of_columns()
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def job_of_row(row: Row | None) -> Job | None:
    """The job of a row with `COLUMNS`; raises DamagedError for one that was not written like that."""
    if row is None:
        return None
    values: dict[str, Any] = dict(zip(_KINDS, row, strict=True))
    if not all(isinstance(values[name], kind) for name, kind in _KINDS.items()):
        raise DamagedError(f"the row of the plan {values['id']!s:.32}")
    job = Job(**values | {name: bool(values[name]) for name in FLAGS})
    texts = [text for text in (job.error, job.change) if text is not None]
    is_hash = job.plan_sha256 is None or is_sha256(job.plan_sha256)
    if job.state not in get_args(State) or not is_hash or not all(map(is_object, texts)):
        raise DamagedError(f"the row of the plan {job.id:.32}")
    return job


def is_sha256(text: object) -> bool:
    """Whether it is written as such a hash is."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def is_object(text: object) -> bool:
    """Whether it is a text that holds a JSON object."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def sha256_of(text: str) -> str:
    """The hash of a text's bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def require_sound(text: object, *, sha256: str | None, what: str) -> str:
    """The text; raises DamagedError for one of another hash, or, where none was stored, one that is no JSON object."""
    if not isinstance(text, str) or not (is_object(text) if sha256 is None else sha256_of(text) == sha256):
        raise DamagedError(what)
    return text


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Whatever the driver cannot read in this context is `what`."""
    try:
        yield
    except DamagedError as damage:
        raise DamagedError(what) from damage


def event_of_row(job_id: str, row: Row) -> Event:
    """An event of a job's story; raises DamagedError for one that was not written like that."""
    seq, kind, at, data = row
    if not isinstance(kind, str) or not isinstance(at, float) or not is_object(data):
        raise DamagedError(f"event {seq} of the plan {job_id}")
    return Event(seq=seq, kind=kind, at=at, data=data)


def find_job(cursor: Cursor, job_id: str, *, lock: str = "") -> Job | None:
    """A job by its number."""
    cursor.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?{lock}", (job_id,))
    return job_of_row(cursor.fetchone())


def tell_event(cursor: Cursor, job_id: str, *, kind: str, now: float, data: dict[str, Any]) -> None:
    """The next event of the job's story; whoever writes one holds the job's row."""
    cursor.execute(
        "INSERT INTO events (job_id, seq, kind, at, data) "
        "SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, ?, ? FROM events WHERE job_id = ?",
        (job_id, kind, now, json.dumps(data), job_id),
    )
