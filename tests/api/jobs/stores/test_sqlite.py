"""The default database: tests of api/jobs/stores/sqlite.py."""

from pathlib import Path

import pytest

from api.jobs.job import Search
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import FolderLock, SqliteDatabase
from tests.api.jobs.stores.test_store import submit


def test_a_folder_has_one_service(tmp_path: Path):
    """Tests that a second service on the same folder is refused until the first is gone."""
    lock = FolderLock(tmp_path)
    with pytest.raises(ValueError, match="another service"):
        FolderLock(tmp_path)
    lock.close()
    FolderLock(tmp_path).close()


def test_expiry_does_not_write_what_it_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that removing 40 MB from a SQLite store writes little, so that nobody waits while it is written."""
    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    store = SqlStore(database)
    for _ in range(40):
        store.stop(submit(store, request="x" * 2**20).id, "a")
    sizes: list[int] = []
    log = tmp_path / "jobs.sqlite-wal"
    monkeypatch.setattr(database, "let_others_in", lambda _: sizes.append(log.stat().st_size))
    monkeypatch.setattr(database, "give_space_back", lambda: None)
    store.expire(older_than_s=-1000)
    assert sizes
    assert max(sizes) < 10 * 2**20
    store.close_all()


def test_space_comes_back(tmp_path: Path):
    """Tests that the file of a store shrinks again when what it held has expired."""
    path = tmp_path / "jobs.sqlite"
    store = SqlStore(SqliteDatabase(path))
    for _ in range(20):
        store.stop(submit(store, request="x" * 2**20).id, "a")
    store.database.give_space_back()
    full = path.stat().st_size
    store.expire(older_than_s=-1000)
    assert path.stat().st_size < full / 10
    store.close_all()


@pytest.mark.parametrize("part", ["GRÖSSE", "größe", "ΛAYER", "λayer"])
def test_names_are_found_in_any_case(tmp_path: Path, part: str):
    """Tests that letters beyond ASCII are found in any case, and by the name as it is written."""
    store = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    for name in ("GRÖSSE", "Größe Λayer", "other"):
        submit(store, name=name)
    found = {job.name for job in store.search("a", Search(name=part), limit=9)}
    assert found == {name for name in ("GRÖSSE", "Größe Λayer") if part.lower() in name.lower()}
    store.close_all()
