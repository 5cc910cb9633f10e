"""A full disk: it is said, and whatever ends or removes something works all the same, on either engine."""

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from api.doctor import make_toy_problem
from api.jobs.job import Outcome
from api.jobs.stores.database import open_database
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore, freeing
from api.jobs.stores.store import StoreFullError
from api.service.audit import AuditLog
from planner.progress import Limits
from tests.api.jobs.stores.test_store import claim, submit
from tests.api.postgres import PostgresServer
from tests.api.service.servers import Running, fill, serving, wait_ready
from tests.api.service.test_http import request
from tests.api.worlds import Shell


def readiness(running: Running) -> tuple[int, str]:
    """Status of readyz, and its code."""
    status, _, text = request(running, "GET", "/readyz")
    return status, json.loads(text).get("code", "")


def submit_until_full(store: SqlStore) -> list[str]:
    """Jobs, as many as there is room for."""
    made: list[str] = []
    while True:
        try:
            made.append(submit(store, "local", request=json.dumps({"a": os.urandom(4000).hex()})).id)
        except StoreFullError:
            return made


def test_a_full_disk_is_said_and_emptied(small_disk: Path):
    """Tests that readyz and new jobs say that the disk is full, while plans and webhooks are deleted and plans stopped,
    however often it is filled again; and that all is well once there is room."""
    with serving(small_disk, num_workers=0, webhook_hosts=("*",)) as running:
        wait_ready(running)
        assert readiness(running) == (200, "")
        client = running.client()
        ids = [client.submit(make_toy_problem(), limits=Limits(seed=seed))["id"] for seed in range(5)]
        hook = request(running, "POST", "/v1/webhooks", {"url": "http://127.0.0.1/"})[1]["location"]
        fill(small_disk, "first")
        ids += submit_until_full(running.service.store)
        acts = [("DELETE", f"/v1/plans/{ids[0]}"), ("DELETE", f"/v1/plans/{ids[1]}"), ("DELETE", hook)]
        acts += [("POST", f"/v1/plans/{ids[2]}:stop"), ("DELETE", f"/v1/plans/{ids[2]}")]
        large = request(running, "GET", "/v1/demo-profiles/vgg16-ethernet")[2]
        for number, (method, path) in enumerate(acts):
            assert readiness(running) == (503, "store_full")
            assert request(running, "POST", "/v1/plans", large)[0] == 507
            assert request(running, method, path)[0] in (200, 204), path
            fill(small_disk, f"again-{number}")
        assert request(running, "GET", f"/v1/plans/{ids[3]}")[0] == 200
        for file in (*small_disk.glob("again-*"), small_disk / "first"):
            file.unlink()
        assert readiness(running) == (200, "")
        client.submit(make_toy_problem(), limits=Limits(seed=99))


def test_a_service_starts_on_a_full_disk(small_disk: Path):
    """Tests that a service that begins on a full disk deletes, expires and revokes, and its audit log knows."""
    with serving(small_disk, num_workers=0) as running:
        store = running.service.store
        kept = submit(store, "local").id
        old = [submit(store, "local").id for _ in range(3)]
        for _ in old:
            store.finish(claim(store), Outcome(state="failed"))
        key, _ = running.service.keys.create("local")
    fill(small_disk, "filler")
    with serving(small_disk, num_workers=0) as running:
        store = running.service.store
        fill(small_disk, "more")
        assert running.service.database.is_full()
        assert request(running, "DELETE", f"/v1/plans/{kept}")[0] in (204, 404)
        fill(small_disk, "even more")
        assert store.expire(older_than_s=-1.0) >= 2
        fill(small_disk, "still more")
        assert running.service.keys.revoke(key.id)
        assert {"plan.deleted", "key.revoked"} <= {entry.action for entry in running.service.audit.listed(limit=9)}


def test_commands_on_a_full_disk(small_disk: Path, tmp_path: Path, shell: Shell):
    """Tests that a key that cannot be stored is refused in words, while one is revoked and a backup is taken."""
    made = shell.run("keys", "create", "--tenant", "a", "--data", str(small_disk))
    key_id = made.out.split("_")[1]
    database = open_database(small_disk, None)
    store = SqlStore(database)
    for number in range(2):
        database.keep_reserve()
        fill(small_disk, f"filler-{number}")
        submit_until_full(store)
        refused = shell.run("keys", "create", "--tenant", "b", "--data", str(small_disk))
        assert (refused.code, refused.out) == (2, "")
        assert "the disk of the store is full; make room on it" in refused.err
        args = [("keys", "revoke", key_id), ("store", "backup", str(tmp_path / "whole.gz"))][number]
        assert shell.run(*args, "--data", str(small_disk)).code == 0
    database.close_all()


@pytest.fixture
def small_postgres(tmp_path: Path) -> Iterator[tuple[Path, SqlStore]]:
    """A database whose tables lie on a disk of their own, of 16 MiB, and the store in it."""
    folder = Path("/tmp", tmp_path.name + "-tables")  # where the server's user may go
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.getuid() or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        folder.rmdir()
        pytest.skip("no file system may be mounted here")
    owner = pwd.getpwnam("postgres")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    server = PostgresServer()
    try:
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
            connection.execute(b"CREATE DATABASE small TABLESPACE small")
        store = SqlStore(PostgresDatabase(server.url("small")))
        yield folder, store
        store.close_all()
    finally:
        server.close()
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


@pytest.mark.slow
def test_a_full_postgres_is_said_and_emptied(small_postgres: tuple[Path, SqlStore]):
    """Tests that a server whose disk is full is told from one that is away, and deletes all the same."""
    folder, store = small_postgres
    for _ in range(2):
        store.database.keep_reserve()
    assert not store.database.is_full()
    ids = submit_until_full(store)
    fill(folder, "filler")
    assert store.database.is_full()
    audit = AuditLog(store.database)
    for job_id in ids:
        assert store.forget(job_id, "local")
        freeing(store.database, lambda job_id=job_id: audit.add(actor="a", action="plan.deleted", subject=job_id))
    assert len(audit.listed(limit=9999)) == len(ids)
    (folder / "filler").unlink()
    submit(store, "local")
