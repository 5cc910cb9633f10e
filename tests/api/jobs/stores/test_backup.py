"""Backups: taken while the store works, put back on either engine, refused when they are not whole."""

import gzip
import json
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from api.jobs.stores.backup import back_up, restore
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Database
from api.service.keys import KeyRing
from tests.api.jobs.stores.looks import recent
from tests.api.jobs.stores.test_store import DONE, NEWS, claim, submit

Make = Callable[[str], Database]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes an empty database on the engine of that name."""

    def made(engine: str) -> Database:
        if engine == "sqlite":
            return SqliteDatabase(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite")
        return PostgresDatabase(request.getfixturevalue("postgres").fresh_database())

    return made


def keep_busy(store: SqlStore, is_over: threading.Event) -> None:
    """Jobs that are submitted, solved and deleted for as long as it takes."""
    number = 0
    while not is_over.is_set():
        submit(store, request=f"request {number} " + "x" * 10_000, name=f"n{number}")
        running = claim(store)
        store.report(running, NEWS)
        store.finish(running, DONE)
        if number % 3 == 0:
            store.forget(running.id, "a")
        number += 1


@pytest.mark.parametrize(("engine", "other"), [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite")])
def test_a_backup_under_load_is_one_moment(make: Make, tmp_path: Path, engine: str, other: str):
    """Tests that a backup taken while jobs come, end and go has every job whole, and works on the other engine."""
    database = make(engine)
    store = SqlStore(database)
    key = KeyRing(database).create("a")[1]
    is_over = threading.Event()
    threads = [threading.Thread(target=keep_busy, args=(store, is_over)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while store.count_states().get("succeeded", 0) < 10:
            time.sleep(0.05)
        counts = back_up(database, tmp_path / "backup.gz")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert counts["jobs"] >= 10
    assert stat.S_IMODE((tmp_path / "backup.gz").stat().st_mode) == 0o600
    second = make(other)
    assert restore(second, tmp_path / "backup.gz") == counts
    assert KeyRing(second).find(key) is not None
    again = SqlStore(second)
    assert "running" not in again.count_states()
    jobs = recent(again, "a", limit=10_000)
    assert len(jobs) == counts["jobs"]
    for job in jobs:
        assert again.request_text(job.id).startswith(f"request {job.name[1:]} ")
        kinds = [event.kind for event in again.events(job.id, after=0)]
        assert kinds[0] == "queued"
        assert (kinds[-1] == "done") == (job.state == "succeeded")
        assert (again.plan_text(job.id) is not None) == (job.plan_sha256 is not None)
    for each in (database, second):
        each.close_all()


def test_only_an_empty_store_is_filled(make: Make, tmp_path: Path):
    """Tests that a store that holds something is left as it is, and so is a file that is there already."""
    database = make("sqlite")
    store = SqlStore(database)
    job = submit(store)
    claim(store)
    back_up(database, tmp_path / "b.gz")
    with pytest.raises(FileExistsError):
        back_up(database, tmp_path / "b.gz")
    with pytest.raises(ValueError, match="restore into an empty one"):
        restore(database, tmp_path / "b.gz")
    assert [each.id for each in recent(store, "a", limit=9)] == [job.id]
    database.close_all()


@pytest.mark.parametrize("damage", ["cut", "short", "foreign", "later", "noise"])
def test_what_is_not_whole_is_refused(make: Make, tmp_path: Path, damage: str):
    """Tests that a file cut off, without its end, of another program or of a later version leaves the store empty."""
    database, path = make("sqlite"), tmp_path / "b.gz"
    store = SqlStore(database)
    for _ in range(20):
        submit(store)
    back_up(database, path)
    data = path.read_bytes()
    lines = gzip.decompress(data).decode().splitlines(keepends=True)
    head = json.loads(lines[0])
    spoiled = {
        "cut": data[: len(data) // 2],
        "short": gzip.compress("".join([*lines[:5], *lines[7:]]).encode()),
        "foreign": gzip.compress(b'{"format": "recipes"}'),
        "later": gzip.compress((json.dumps({**head, "schema": 99}) + "\n").encode()),
        "noise": b"no backup",
    }
    path.write_bytes(spoiled[damage])
    fresh = make("sqlite")
    with pytest.raises(ValueError, match=r"cut off|not a (whole )?backup|newer"):
        restore(fresh, path)
    assert SqlStore(fresh).count_states() == {}
    for each in (database, fresh):
        each.close_all()
