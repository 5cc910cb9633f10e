"""What tests of job stores share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    """An empty store on each engine."""
    if request.param == "sqlite":
        made = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    else:
        made = SqlStore(PostgresDatabase(request.getfixturevalue("postgres").fresh_database()))
    yield made
    made.close_all()
