"""Which workers live: tests of api/jobs/workers/worker_registry.py."""

from pathlib import Path
from typing import Any

import pytest

from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.worker_registry import SILENT_S, WorkerRegistry


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_roster(tmp_path: Path, engine: str, request: pytest.FixtureRequest):
    """Tests that a worker counts while its heart beats, and no longer when it has left or fallen silent."""
    if engine == "sqlite":
        database: Any = SqliteDatabase(tmp_path / "jobs.sqlite")
    else:
        database = PostgresDatabase(request.getfixturevalue("postgres").fresh_database())
    SqlStore(database)
    roster = WorkerRegistry(database)
    roster.beat("one", num_slots=2)
    roster.beat("two", num_slots=1)
    assert (roster.strength().num_workers, roster.strength().num_slots) == (2, 3)
    roster.leave("one")
    assert roster.strength().num_workers == 1
    with database.transaction() as cursor:
        cursor.execute("UPDATE workers SET seen_at = seen_at - ?", (SILENT_S + 1,))
    assert roster.strength().num_workers == 0
    database.close_all()
