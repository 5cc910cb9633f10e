"""Stores that earlier releases wrote: opened, brought up to date once, worked on."""

import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from api.jobs.stores import store_schema
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.store import IdempotencyConflictError
from api.jobs.stores.transactions import Database
from api.service.keys import KeyRing
from planner.document import parse_plan
from tests.api.jobs import frozen_stores
from tests.api.jobs.stores.looks import recent

HERE = Path(__file__).parents[1]

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
        "VALUES ('old', 'a', 'toy', 'queued', '{}', 'p', 'r', 0, 0, 0, 1.0, 0, 0, 0, 0.0, 1);"
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


@pytest.fixture(
    params=[
        "3 sqlite",
        "3 postgres",
        "4 sqlite",
        "4 postgres",
        "5 sqlite",
        "5 postgres",
        "6 sqlite",
        "6 postgres",
        "7 sqlite",
        "7 postgres",
        "8 sqlite",
        "8 postgres",
    ]
)
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A store that `frozen_stores` wrote with the code of its version."""
    version, engine = request.param.split()
    if engine == "sqlite":
        made: Database = SqliteDatabase(Path(shutil.copy(frozen_stores.sqlite_file(int(version)), tmp_path)))
    else:
        url = request.getfixturevalue("postgres").fresh_database()
        run_script(url, frozen_stores.postgres_file(int(version)).read_text())
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
        assert store.request_text("old") == "{}"
        assert version_of(version_1) == store_schema.VERSION
    with pytest.raises(IdempotencyConflictError):
        store.recall("a", idempotency_key="k", body_sha256="two")
    claimed = store.claim("w", lease_s=60.0)
    assert claimed is not None
    assert claimed.id == "old"
    with version_1.transaction() as cursor:
        cursor.execute("SELECT request_bytes FROM jobs")
        assert cursor.fetchall() == [(len("{}"),)]


def test_version_2_is_taken_over(version_2: Database):
    """Tests that everything in a store of release 0.2 is there after the migration, and that work goes on."""
    for _ in range(2):
        store = SqlStore(version_2)
        assert version_of(version_2) == store_schema.VERSION
    states = {job.id: job.state for job in recent(store, "research", limit=9)}
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


def test_frozen_stores_are_taken_over(frozen: Database, tmp_path: Path):
    """Tests that everything in a store of version 3 and later is there after the migration, and that work goes on."""
    for _ in range(2):
        store = SqlStore(frozen)
        assert version_of(frozen) == store_schema.VERSION
    assert_as_new(frozen, tmp_path)
    jobs = {job.id: job for job in recent(store, frozen_stores.TENANT, limit=9)}
    assert {job.id: job.state for job in jobs.values()} == {
        frozen_stores.DONE: "succeeded",
        frozen_stores.FAILED: "failed",
        frozen_stores.PINNED: "cancelled",
        frozen_stores.RUNNING: "running",
        frozen_stores.WAITING: "queued",
    }
    done = jobs[frozen_stores.DONE]
    assert (done.project, done.tags, done.gap, done.solver_bound_ns) == ("moon", " a b ", 0.25, None)
    text = store.plan_text(done.id)
    assert text is not None
    assert parse_plan(text).evidence is not None
    assert store.incumbent_text(done.id, store.incumbents(done.id)[0]) == text
    assert store.drawing(done.id, "report") == "{}"
    assert store.recall(frozen_stores.TENANT, idempotency_key="one", body_sha256="12" * 32) == done
    assert KeyRing(frozen).find(frozen_stores.KEY) is not None
    assert store.forget(done.id, frozen_stores.TENANT)
    assert store.put_back(all_running=True) == 1


def test_tables_change_only_with_the_version(tmp_path: Path):
    """Tests that a new store has the tables and indexes of the store that was kept of this version, word by word."""
    kept = shutil.copy(frozen_stores.sqlite_file(store_schema.VERSION), tmp_path)
    frozen_stores.write_sqlite(tmp_path / "new.sqlite")
    found = []
    for path in (Path(kept), tmp_path / "new.sqlite"):
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            found.append({name: " ".join(sql.split()) for name, sql in rows})
    assert found[0] == found[1]


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
    with pytest.raises(ValueError, match="install a newer pipeplan"):
        SqlStore(version_2)
    with version_2.transaction() as cursor:
        assert "drawn_bytes" not in version_2.columns(cursor, "jobs")
    assert version_of(version_2) == 99


def another(database: Database) -> Database:
    """The same store as another process has it."""
    if isinstance(database, SqliteDatabase):
        return SqliteDatabase(database.path)
    assert isinstance(database, PostgresDatabase)
    return PostgresDatabase(database.url)


def test_two_begin_at_once(version_2: Database, tmp_path: Path):
    """Tests that of instances that open an old store at the same time one migrates it, and the others find it done."""
    databases = [version_2, *(another(version_2) for _ in range(3))]
    ready = threading.Barrier(len(databases))

    def open_store(database: Database) -> int:
        ready.wait()
        SqlStore(database)
        return version_of(database)

    with ThreadPoolExecutor(len(databases)) as threads:
        assert list(threads.map(open_store, databases)) == [store_schema.VERSION] * len(databases)
    assert_as_new(version_2, tmp_path)
    for database in databases[1:]:
        database.close_all()


def test_a_migration_is_whole_or_not_at_all(version_2: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a migration that ends before its last statement leaves the old store, which the next one migrates."""
    last = store_schema.VERSION - 1
    with monkeypatch.context() as patched:
        patched.setitem(store_schema.STEPS, last, (*store_schema.STEPS[last], "SELECT * FROM nowhere"))
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            SqlStore(version_2)
    with version_2.transaction() as cursor:
        assert "drawn_bytes" not in version_2.columns(cursor, "jobs")
    SqlStore(version_2)
    assert_as_new(version_2, tmp_path)


def test_every_way_leads_to_the_same_tables(version_1: Database, version_2: Database, tmp_path: Path):
    """Tests that migrated stores have the columns of a new one, in every table."""
    for database in (version_1, version_2):
        SqlStore(database)
        assert_as_new(database, tmp_path)


def assert_as_new(database: Database, folder: Path) -> None:
    """The columns are those of a new store, in every table."""
    fresh = SqliteDatabase(folder / "fresh.sqlite")
    SqlStore(fresh)
    with fresh.transaction() as new, database.transaction() as cursor:
        for table in (*store_schema.CONTENTS, "workers"):
            wanted = fresh.columns(new, table)
            assert wanted
            assert database.columns(cursor, table) == wanted
    fresh.close_all()
