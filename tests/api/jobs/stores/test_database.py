"""A database that starts later, or not at all."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from api.jobs.stores.database import await_server
from api.jobs.stores.postgres import EVEN_S, HOUSEKEEPING_S, PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.transactions import Cursor
from tests.api.jobs.stores.test_store import submit
from tests.api.postgres import PostgresServer, find_programs
from tests.own_time import tell_time

pytestmark = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL's server is not installed")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


def test_a_server_that_starts_later_is_waited_for(server: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """Tests that the wait ends when the server is there, and that it is told of meanwhile."""
    monkeypatch.setattr("api.jobs.stores.database.TOLD_EVERY_S", 0.1)
    url = server.fresh_database()
    server.stop()
    starter = threading.Timer(1.5, server.start)
    starter.start()
    told: list[str] = []
    await_server(url, wait_s=60, tell=told.append)
    starter.join()
    assert told
    assert told[0].startswith("waiting for the database: ")


def test_a_server_that_never_comes_is_given_up(server: PostgresServer):
    """Tests that the error comes after the time that was given, and says what to do."""
    url = server.fresh_database()
    server.stop()
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"no server after 1 s of waiting: .*; start it, correct the URL"):
        await_server(url, wait_s=1, tell=lambda _: None)
    assert time.monotonic() - begin >= 1
    server.start()


def test_what_waiting_does_not_mend_is_said_at_once(server: PostgresServer):
    """Tests that a database that the server does not have is not waited for, nor a URL that is none."""
    with pytest.raises(ValueError, match=r'the server refuses: .*"nowhere" does not exist'):
        await_server(server.url("nowhere"), wait_s=3600, tell=lambda _: None)
    with pytest.raises(ValueError, match="--database-url: "):
        await_server("no url", wait_s=3600, tell=lambda _: None)


def test_clocks_are_held_against_each_other_again(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """Tests that a clock that is set anew misleads nobody, and one that runs unevenly does so for seconds."""
    database = PostgresDatabase(postgres.fresh_database())
    begin, module = database.now(), "api.jobs.stores.postgres"
    tell_time(monkeypatch, module, time=lambda: time.time() + 1000.0)
    assert abs(database.now() - begin) < 900.0
    tell_time(monkeypatch, module, time=lambda: time.time() - 1000.0)
    assert abs(database.now() - begin) < 900.0
    monkeypatch.setattr("api.jobs.stores.postgres._STEP_S", 1e9)
    tell_time(monkeypatch, module, time=lambda: time.time() + 1000.0)
    assert database.now() - begin > 900.0
    later = {"time": lambda: time.time() + 1000.0, "monotonic": lambda: time.monotonic() + EVEN_S}
    tell_time(monkeypatch, module, **later)
    assert abs(database.now() - begin) < 900.0
    database.close_all()


def test_texts_are_compressed_quickly(postgres: PostgresServer):
    """Tests that large texts are compressed by the quick method, where the server knows it."""
    database = PostgresDatabase(postgres.fresh_database())
    with database.transaction() as cursor:
        cursor.execute("SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'")
        row = cursor.fetchone()
        assert row is not None
        cursor.execute("CREATE TABLE texts (text TEXT)")
        cursor.execute("INSERT INTO texts SELECT string_agg(n::text, ',') FROM generate_series(1, 20000) n")
        cursor.execute("SELECT pg_column_compression(text) FROM texts")
        assert cursor.fetchone() == ("lz4" if row[0] else "pglz",)
    database.close_all()


def test_only_housekeeping_need_not_last(postgres: PostgresServer):
    """Tests that every commit waits for the disk, and every statement for as long as it takes, but housekeeping's."""
    database, seen = PostgresDatabase(postgres.fresh_database()), []
    for given_up in (None, 0, 2, None):
        with database.transaction() as cursor:
            if given_up is not None:
                database.begin_housekeeping(cursor, given_up=given_up)
            cursor.execute("SELECT current_setting('synchronous_commit'), current_setting('statement_timeout')")
            seen.append(cursor.fetchone())
    database.close_all()
    assert seen == [("on", "0"), ("off", "300ms"), ("off", "600ms"), ("on", "0")]


def test_expiry_gives_up_what_stands_still(postgres: PostgresServer):
    """Tests that expiry holds no transaction for as long as others hold a row of it, and goes on when they let go."""
    database = PostgresDatabase(postgres.fresh_database())
    store, seconds = SqlStore(database), []
    for _ in range(3):
        store.stop(submit(store).id, "a")
    plain = database.transaction

    @contextmanager
    def timed(*, is_writing: bool = True) -> Iterator[Cursor]:
        begin = time.monotonic()
        try:
            with plain(is_writing=is_writing) as cursor:
                yield cursor
        finally:
            seconds.append(time.monotonic() - begin)

    database.transaction = timed  # type: ignore[method-assign]
    with psycopg.connect(database.url) as other:
        other.execute("SELECT id FROM jobs FOR UPDATE")
        assert store.expire(older_than_s=-1000) == 0
        assert HOUSEKEEPING_S <= max(seconds) < 1.0
    assert store.expire(older_than_s=-1000) == 3
    database.close_all()
