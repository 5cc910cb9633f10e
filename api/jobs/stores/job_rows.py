"""Rows of `jobs` and of their stories, read and written inside a transaction.

What is read is held against what was written: types, words, JSON, and hashes where they are stored.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import isfinite
from typing import Any, get_args, get_type_hints

from api.jobs.job import DamagedError, Event, Job, State
from api.jobs.request_fields import EventKind
from api.jobs.stores.hashes import hash_of_row, is_row_of, is_sha256, sha256_of
from api.jobs.stores.islands_gone import HASHED
from api.jobs.stores.transactions import Cursor, Row

_CHANGING = {
    *("state", "started_at", "attempt", "crashes", "worker", "version", "phase"),
    *("is_pinned", "is_stopped", "spent_s"),
}
"""Columns that no hash covers, because every claim and release changes them."""

_HASHED = [*HASHED, *(field.name for field in fields(Job) if field.name not in _CHANGING | {*HASHED})]
"""Columns of which a row states the hash. A new one comes last and may be NULL, and does not count then: rows that
earlier releases wrote state a hash without it."""

COLUMNS = ", ".join([*(field.name for field in fields(Job)), "row_sha256"])
"""What is read of a job."""

FLAGS = {"is_deterministic", "is_pinned", "is_stopped"}
"""Columns that stand as 0 and 1."""


def _kinds_of_columns() -> dict[str, tuple[type, ...]]:
    """The types that a value of each column may have."""
    hints = get_type_hints(Job) | {"state": str}
    kinds = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {name: (*kind, int) if {float, bool} & set(kind) else kind for name, kind in kinds.items()}


_KINDS = _kinds_of_columns()


def job_of_row(row: Row | None) -> Job | None:
    """The job of a row with `COLUMNS`; raises DamagedError for one that was not written like that."""
    if row is None:
        return None
    *found, stated = row
    values: dict[str, Any] = dict(zip(_KINDS, found, strict=True))
    is_sound = all(isinstance(values[name], kind) for name, kind in _KINDS.items()) and _is_possible(values)
    if not is_sound or not is_row_of(stated, _counted([values[name] for name in _HASHED])):
        raise DamagedError(f"the row of the plan {values['id']!s:.32}")
    job = Job(**values | {name: bool(values[name]) for name in FLAGS})
    texts = [text for text in (job.error, job.change) if text is not None]
    is_hash = job.plan_sha256 is None or is_sha256(job.plan_sha256)
    if job.state not in get_args(State) or not is_hash or not all(map(is_object, texts)):
        raise DamagedError(f"the row of the plan {job.id:.32}")
    return job


def _is_possible(values: dict[str, Any]) -> bool:
    counts = (values["attempt"], values["crashes"], values["version"])
    numbers = (value for value in values.values() if isinstance(value, float))
    return min(counts) >= 0 and all(values[name] in (0, 1) for name in FLAGS) and all(map(isfinite, numbers))


def _counted(values: Sequence[object]) -> Sequence[object]:
    """The values without those at the end that hold nothing."""
    return values[: max((place for place, value in enumerate(values, start=1) if value is not None), default=0)]


def hash_row(cursor: Cursor, job_id: str) -> None:
    """Let the row of a job state its hash anew; the one that changes hashed columns does so in the same transaction."""
    cursor.execute(f"SELECT {', '.join(_HASHED)} FROM jobs WHERE id = ?", (job_id,))
    row = cursor.fetchone()
    assert row is not None
    cursor.execute("UPDATE jobs SET row_sha256 = ? WHERE id = ?", (hash_of_row(_counted(row)), job_id))


def is_object(text: object) -> bool:
    """Whether it is a text that holds a JSON object."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


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
    is_known = isinstance(seq, int) and kind in get_args(EventKind)
    if not is_known or not isinstance(at, float) or not isfinite(at) or not is_object(data):
        raise DamagedError(f"event {seq} of the plan {job_id}")
    return Event(seq=seq, kind=kind, at=at, data=data)


def find_job(cursor: Cursor, job_id: str, *, lock: str = "") -> Job | None:
    """A job by its number."""
    cursor.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?{lock}", (job_id,))
    return job_of_row(cursor.fetchone())


def tell_event(cursor: Cursor, job_id: str, *, kind: str, now: float, data: dict[str, Any]) -> None:
    """The next event of the job's story; the one that writes one holds the job's row."""
    cursor.execute(
        "INSERT INTO events (job_id, seq, kind, at, data) "
        "SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, ?, ? FROM events WHERE job_id = ?",
        (job_id, kind, now, json.dumps(data), job_id),
    )
