"""Stores that earlier releases wrote: opened, brought up to date once, worked on."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from api.jobs import store_schema
from api.jobs.postgres import PostgresDatabase
from api.jobs.sql_store import Database, SqlStore
from api.jobs.sqlite import SqliteDatabase
from api.jobs.store import IdempotencyConflictError
from api.service.keys import KeyRing
from planner.document import parse_plan

HERE = Path(__file__).parent

DONE, FAILED, PINNED, RUNNING, WAITING = (f"{number:032x}" for number in range(1, 6))
"""The jobs of version 2's stores, which release 0.2 wrote."""

KEY = "pp_" + "ab" * 6 + "_" + "ab" * 24
"""Its API key."""


def run_script(url: str, text: str) -> None:
    """Statements as they stand in a file."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text.encode())


@pytest.fixture(params=["sqlite", "postgres"])
def version_1(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A store of version 1, with one job."""
    text = (HERE / "schema_1.sql").read_text()
    text += (
        "INSERT INTO jobs (id, tenant, name, state, request, problem_key, request_key, is_deterministic, priority, "
        "is_pinned, created_at, attempt, crashes, is_stopped, spent_s, version) "
        "VALUES ('old', 'a', 'toy', 'queued', 'the request', 'p', 'r', 0, 0, 0, 1.0, 0, 0, 0, 0.0, 1);"
        "INSERT INTO idempotency VALUES ('a', 'k', 'one', 'old')"
    )
    if request.param == "sqlite":
        made: Database = SqliteDatabase(tmp_path / "old.sqlite")
        with made.transaction() as cursor:
            for statement in text.split(";"):
                cursor.execute(statement)
    else:
        url = request.getfixturevalue("postgres").fresh_database()
        run_script(url, text)
        made = PostgresDatabase(url)
    yield made
    made.close_all()


@pytest.fixture(params=["sqlite", "postgres"])
def version_2(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The store that release 0.2 wrote: jobs in every state, two keys, two idempotency keys."""
    if request.param == "sqlite":
        shutil.copy(HERE / "schema_2.sqlite", tmp_path)
        made: Database = SqliteDatabase(tmp_path / "schema_2.sqlite")
    else:
        url = request.getfixturevalue("postgres").fresh_database()
        run_script(url, (HERE / "schema_2_postgres.sql").read_text())
        made = PostgresDatabase(url)
    yield made
    made.close_all()


def version_of(database: Database) -> int:
    """What the store states."""
    with database.transaction(is_writing=False) as cursor:
        cursor.execute("SELECT version FROM schema_version")
        ((version,),) = cursor.fetchall()
        return int(version)


def test_version_1_is_taken_over(version_1: Database):
    """Tests that a store of version 1 is brought up to date once, and its job, key and request are there."""
    for _ in range(2):
        store = SqlStore(version_1)
        assert store.request_text("old") == "the request"
        assert version_of(version_1) == store_schema.VERSION
    with pytest.raises(IdempotencyConflictError):
        store.recall("a", idempotency_key="k", body_sha256="two")
    claimed = store.claim("w", lease_s=60.0)
    assert claimed is not None
    assert claimed.id == "old"
    with version_1.transaction() as cursor:
        cursor.execute("SELECT request_bytes FROM jobs")
        assert cursor.fetchall() == [(len("the request"),)]


def test_version_2_is_taken_over(version_2: Database):
    """Tests that everything in a store of release 0.2 is there after the migration, and that work goes on."""
    for _ in range(2):
        store = SqlStore(version_2)
        assert version_of(version_2) == store_schema.VERSION
    states = {job.id: job.state for job in store.recent("research", limit=9)}
    assert states == {
        DONE: "succeeded",
        FAILED: "failed",
        PINNED: "cancelled",
        RUNNING: "running",
        WAITING: "queued",
    }
    text = store.plan_text(DONE)
    assert text is not None
    assert parse_plan(text).evidence is not None
    done = store.get(DONE)
    assert done is not None
    assert (done.plan_sha256, done.project, done.request_id) == (hashlib.sha256(text.encode()).hexdigest(), "", None)
    known = store.recall("research", idempotency_key="key-2", body_sha256=hashlib.sha256(b"two").hexdigest())
    assert known == done
    assert [event.kind for event in store.events(DONE, after=0)][-1] == "done"
    assert store.put_back(all_running=True) == 1
    claimed = store.claim("w", lease_s=60.0)
    assert claimed is not None
    assert (claimed.id, claimed.base_id) == (WAITING, DONE)


def test_keys_of_version_2_open_the_door(version_2: Database):
    """Tests that an API key of release 0.2 is still good, and a revoked one is not."""
    SqlStore(version_2)
    found = KeyRing(version_2).find(KEY)
    assert found is not None
    assert found.tenant == "research"
    assert KeyRing(version_2).find(KEY.replace("ab", "cd")) is None


def test_tomorrows_store_is_refused(version_2: Database):
    """Tests that a store of a later version is left as it is, with a word about what to do."""
    with version_2.transaction() as cursor:
        cursor.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(ValueError, match="install a newer one"):
        SqlStore(version_2)
    with version_2.transaction() as cursor:
        assert "drawn_bytes" not in version_2.columns(cursor, "jobs")
    assert version_of(version_2) == 99


def test_every_way_leads_to_the_same_tables(version_1: Database, version_2: Database, tmp_path: Path):
    """Tests that migrated stores have the columns of a new one, in every table."""
    fresh = SqliteDatabase(tmp_path / "fresh.sqlite")
    for database in (fresh, version_1, version_2):
        SqlStore(database)
    with fresh.transaction() as new, version_1.transaction() as first, version_2.transaction() as second:
        for table in (*store_schema.CONTENTS, "workers"):
            wanted = fresh.columns(new, table)
            assert wanted
            assert version_1.columns(first, table) == wanted
            assert version_2.columns(second, table) == wanted
    fresh.close_all()
