"""A store whose rows were damaged: each is told as such, everywhere alike, and can be deleted; the rest works on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.jobs.job import DamagedError, Outcome, ProgressUpdate
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import persistently
from api.service.keys import KeyRing
from api.service.webhooks import Webhooks, WebhookSender
from planner.release import RELEASE
from tests.api.jobs.stores.looks import recent
from tests.api.jobs.stores.test_store import submit
from tests.api.listening import listening
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request

PLAN = json.dumps({"format": "a plan", "numbers": list(range(50))})
NEWS = ProgressUpdate(phase="search", incumbent_ns=10**6, lower_bound_ns=1, gap=0.5, source="x", plan=PLAN)

HALF = "SUBSTR({column}, 1, LENGTH({column}) / 2)"
NO_TEXT = "CAST(x'7bfffe80' AS TEXT)"
BYTES = "x'7b7d'"
OTHER = "'{{\"a\": 1}}'"


@pytest.fixture(scope="module")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose jobs nobody works on."""
    with serving(tmp_path_factory.mktemp("damage"), num_workers=0) as started:
        yield started


def make_job(store: SqlStore) -> str:
    """A job that has succeeded, with everything that is stored of one."""
    job_id = submit(store, "local").id
    job = store.claim("w", lease_s=60.0)
    assert job is not None
    assert job.id == job_id
    store.report(job, NEWS)
    store.finish(job, Outcome(state="succeeded", stopped_by="time", solution_status="feasible", gap=0.5))
    store.keep_drawing(job_id, f"view@{RELEASE}", text="<html>whole</html>")
    return job_id


def damage(store: SqlStore, job_id: str, *, table: str, column: str, how: str) -> None:
    """Change what stands in a row."""
    owner = "id" if table == "jobs" else "job_id"
    last = " AND seq = (SELECT MAX(seq) FROM events AS them WHERE them.job_id = events.job_id)"
    where = f"{owner} = ?{last if column == 'seq' else ''}"
    with store.database.transaction() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {how.format(column=column)} WHERE {where}", (job_id,))
        assert cursor.rowcount


READERS = {
    "requests": ("picture", "report", "trace", "export/torch"),
    "plans": ("plan", "report", "picture", "export/trace"),
    "drawings": ("view",),
    "incumbents": ("picture?incumbent=3",),
    "events": ("events", "history"),
    "jobs": ("", "plan", "events", "history", "picture"),
}
"""Who reads of a table, after the address of the plan."""

DAMAGES = [
    *((table, "text", how) for table in ("requests", "plans", "drawings") for how in (HALF, NO_TEXT, BYTES, OTHER)),
    *(("incumbents", "text", how) for how in (HALF, NO_TEXT, BYTES, "'AAAA'")),
    *(("events", "data", how) for how in (HALF, NO_TEXT, BYTES, "'[]'")),
    *(("jobs", "state", how) for how in (HALF, NO_TEXT, "'done'")),
    *(("jobs", "plan_sha256", how) for how in (HALF, NO_TEXT, BYTES)),
    *(("jobs", column, how) for column in ("error", "change") for how in ('\'{{"code": "inf\'', NO_TEXT, "'7'")),
    *(("jobs", column, how) for column in ("name", "tags", "phase") for how in (NO_TEXT, BYTES)),
    *(("jobs", column, "'many'") for column in ("created_at", "incumbent_ns", "gap", "attempt")),
    *(("jobs", column, HALF) for column in ("name", "source", "solution_status", "stopped_by", "problem_key")),
    *(("jobs", column, how) for column, how in (("gap", "9e999"), ("started_at", "9e999"), ("lower_bound_ns", "2"))),
    *(("events", column, how) for column, how in (("kind", HALF), ("at", "9e999"), ("seq", "seq + 1"))),
]


@pytest.mark.parametrize(("table", "column", "how"), DAMAGES)
def test_a_damaged_row_is_told(holding: Running, table: str, column: str, how: str):
    """Tests that every way to what is damaged answers 500 `damaged`, naming the plan, and that it can be deleted."""
    store = holding.service.store
    damaged, sound = make_job(store), make_job(store)
    damage(store, damaged, table=table, column=column, how=how)
    paths = [f"/v1/plans/{damaged}/{name}".rstrip("/") for name in READERS[table]]
    paths += ["/v1/plans"] if table == "jobs" else []
    for path in paths:
        status, headers, text = request(holding, "GET", path)
        assert (status, headers["content-type"]) == (500, "application/problem+json"), (path, text[:200])
        problem = json.loads(text)
        assert problem["code"] == "damaged"
        assert damaged in problem["detail"], path
    assert request(holding, "GET", f"/v1/plans/{sound}/plan")[2].decode() == PLAN
    assert request(holding, "DELETE", f"/v1/plans/{damaged}")[0] == 204
    assert [job["id"] for job in json.loads(request(holding, "GET", "/v1/plans")[2])["plans"]] == [sound]
    assert request(holding, "DELETE", f"/v1/plans/{sound}")[0] == 204


def test_a_question_on_a_damaged_plan_is_no_fault_of_who_asks(holding: Running):
    """Tests that a what-if, its ranges and a new search from a plan with a damaged request are answered alike."""
    store = holding.service.store
    job_id = make_job(store)
    damage(store, job_id, table="requests", column="text", how=HALF)
    bodies: dict[str, Any] = {
        "/v1/what-if": {"base": job_id, "change": {"devices": 1}},
        "/v1/what-if/ranges": {"base": job_id, "changes": [{"devices": 1}]},
        "/v1/plans": {"start_from": job_id},
    }
    for path, body in bodies.items():
        status, _, text = request(holding, "POST", path, body)
        assert (status, json.loads(text)["code"]) == (500, "damaged"), path
    assert store.forget(job_id, "local")


@pytest.mark.parametrize(("column", "how"), [("change", "'{{'"), ("error", "'no'"), ("plan_sha256", "'ab'")])
def test_a_damaged_job_stops_no_other(store: SqlStore, column: str, how: str):
    """Tests that a job whose row is damaged ends when its turn comes, and the next one is worked on."""
    damaged, sound = submit(store, "local").id, submit(store, "local").id
    damage(store, damaged, table="jobs", column=column, how=how)
    claimed = store.claim("w", lease_s=60.0)
    assert claimed is not None
    assert claimed.id == sound
    assert store.count_states() == {"failed": 1, "running": 1}
    assert store.claim("w", lease_s=60.0) is None


@pytest.mark.parametrize("how", [HALF, OTHER])
def test_hashes_are_checked(store: SqlStore, how: str):
    """Tests that on either engine a text of another hash is not read, for the plan of another's start neither."""
    job_id = make_job(store)
    for table in ("requests", "plans", "drawings"):
        damage(store, job_id, table=table, column="text", how=how)
    job = store.get(job_id)
    assert job is not None
    for read in (
        lambda: store.request_text(job_id),
        lambda: store.plan_text(job_id),
        lambda: store.drawing(job_id, f"view@{RELEASE}"),
        lambda: store.find_plan_like("local", job.problem_key),
        lambda: persistently(lambda: store.plan_text(job_id), seconds=60.0),
    ):
        with pytest.raises(DamagedError, match="plan"):
            read()


def test_a_damaged_key_is_told(store: SqlStore):
    """Tests that whoever brings a key of which anything was cut is not told that it is wrong, and reads nobody's."""
    ring = KeyRing(store.database)
    for column in ("sha256", "scopes", "tenant", "row_sha256"):
        key, text = ring.create("ab")
        assert ring.find(text) is not None
        with store.database.transaction() as cursor:
            cursor.execute(f"UPDATE api_keys SET {column} = {HALF.format(column=column)} WHERE id = ?", (key.id,))
        with pytest.raises(DamagedError, match=key.id):
            ring.find(text)


def test_a_damaged_delivery_stops_no_other(store: SqlStore):
    """Tests that what a webhook cannot be told any more is dropped, and the next one is told."""
    with listening() as listener:
        webhooks = Webhooks(store.database, hosts=["127.0.0.1"])
        webhooks.create("local", listener.url)
        damaged, sound = make_job(store), make_job(store)
        damage(store, damaged, table="deliveries", column="body", how=HALF)
        for _ in range(2):
            WebhookSender(webhooks).deliver_due()
        assert [json.loads(body)["id"] for _, body in listener.heard] == [sound]
        with store.database.transaction() as cursor:
            cursor.execute("SELECT COUNT(*) FROM deliveries")
            assert cursor.fetchall() == [(0,)]


def test_a_damaged_webhook_is_told(store: SqlStore):
    """Tests that nothing is sent to an address, or signed with a secret, that was cut, and that it can be removed."""
    with listening() as listener:
        webhooks = Webhooks(store.database, hosts=["127.0.0.1"])
        for column in ("url", "secret"):
            hook, _ = webhooks.create("local", f"{listener.url}/{column}")
            make_job(store)
            with store.database.transaction() as cursor:
                cursor.execute(f"UPDATE webhooks SET {column} = {HALF.format(column=column)} WHERE id = ?", (hook.id,))
            with pytest.raises(DamagedError, match=hook.id):
                webhooks.listed("local")
            WebhookSender(webhooks).deliver_due()
            assert webhooks.remove(hook.id, "local")
        assert (listener.heard, webhooks.listed("local")) == ([], [])


def test_a_job_of_no_tenant_is_nobodys(store: SqlStore):
    """Tests that a job whose tenant was cut is not shown to the tenant of that name, and the metrics count a state."""
    job_id = submit(store, "research-two").id
    damage(store, job_id, table="jobs", column="tenant", how="SUBSTR(tenant, 1, 8)")
    damage(store, job_id, table="jobs", column="state", how=HALF)
    with pytest.raises(DamagedError, match=job_id):
        recent(store, "research", limit=9)
    assert store.count_states() == {"damaged": 1}
