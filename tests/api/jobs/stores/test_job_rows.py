"""Tests of api/jobs/stores/job_rows.py."""

import shutil
from pathlib import Path

import pytest

from api.jobs.stores import job_rows
from api.jobs.stores.sqlite import SqliteDatabase
from tests.api.jobs import frozen_stores


def test_a_new_column_spoils_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that rows of a release without a column are sound to one that has it, and that it counts once it is set."""
    database = SqliteDatabase(Path(shutil.copy(frozen_stores.sqlite_file(7), tmp_path)))

    def hash_now() -> str:
        with database.transaction() as cursor:
            job_rows.hash_row(cursor, frozen_stores.DONE)
            cursor.execute("SELECT row_sha256 FROM jobs WHERE id = ?", (frozen_stores.DONE,))
            return str(cursor.fetchall()[0][0])

    before = hash_now()
    monkeypatch.setattr(job_rows, "_HASHED", [*job_rows._HASHED, "key_id"])  # a column that no release has hashed
    for value, is_same in ((None, True), ("set", False)):
        with database.transaction() as cursor:
            cursor.execute("UPDATE jobs SET key_id = ?", (value,))
        assert (hash_now() == before) is is_same
    database.close_all()
