"""Stores as a release wrote them, kept beside the tests: `python -m tests.api.jobs.frozen_stores` writes this one's.

It is run once whenever `store_schema.VERSION` is raised, by the code of the new version, and never for an old one.
"""

import json
import tempfile
from pathlib import Path

from api.jobs.job import NewJob, Outcome, ProgressUpdate, Quota
from api.jobs.stores import store_schema
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Database
from api.service.keys import KeyRing
from api.service.webhooks import Webhooks
from tests.api.postgres import PostgresServer

HERE = Path(__file__).parent

TENANT, KEY = "research", "pp_" + "ab" * 6 + "_" + "ab" * 24
"""Whose everything is, and the API key."""

DONE, FAILED, PINNED, RUNNING, WAITING = (f"{number:032x}" for number in range(1, 6))
"""The jobs."""

QUOTA = Quota(unfinished_jobs=100, hourly_jobs=100, stored_bytes=2**30)


def sqlite_file(version: int) -> Path:
    """Where the store of that version lies."""
    return HERE / f"schema_{version}.sqlite"


def postgres_file(version: int) -> Path:
    """The same for PostgreSQL, as statements."""
    return HERE / f"schema_{version}_postgres.sql"


def new_job(job_id: str, **changes: object) -> NewJob:
    """A job of the tenant's, with a small request."""
    given = {"id": job_id, "tenant": TENANT, "name": "toy", "request": json.dumps({"job": job_id}), "problem_key": "p"}
    more = {"request_key": job_id, "is_deterministic": False, "key_id": "ab" * 6, "request_id": f"asked-{job_id[-1]}"}
    return NewJob(**given | more | changes)  # type: ignore[arg-type]


def fill(database: Database, *, plan: str) -> None:
    """Jobs in every state, one with a plan, an incumbent and a drawing; a key, a webhook, an idempotency key."""
    KeyRing(database).adopt(KEY, tenant=TENANT)
    Webhooks(database, hosts=("hooks.example.com",)).create(TENANT, "https://hooks.example.com/one")
    store = SqlStore(database)
    filed = new_job(DONE, project="moon", tags=" a b ", profile_sha256="cd" * 32)
    store.submit(filed, idempotency_key="one", body_sha256="12" * 32, quota=QUOTA)
    for job_id, outcome in (
        (DONE, Outcome(state="succeeded", stopped_by="gap", solution_status="feasible", plan=plan, gap=0.25)),
        (FAILED, Outcome(state="failed", solution_status="infeasible", error={"code": "infeasible", "detail": "no"})),
    ):
        if job_id != DONE:
            store.submit(new_job(job_id))
        claimed = store.claim("worker", lease_s=60.0)
        assert claimed is not None
        assert claimed.id == job_id
        if job_id == DONE:
            found = {"phase": "search", "incumbent_ns": 40, "lower_bound_ns": 30, "gap": 0.25, "source": "x"}
            store.report(claimed, ProgressUpdate(plan=plan, **found))  # type: ignore[arg-type]
        store.finish(claimed, outcome)
    store.keep_drawing(DONE, "report", text="{}")
    store.submit(new_job(PINNED, is_pinned=True))
    store.stop(PINNED, TENANT)
    store.submit(new_job(RUNNING))
    store.claim("worker", lease_s=60.0)
    store.submit(new_job(WAITING, priority=3, base_id=DONE))


def a_plan() -> str:
    """A plan's document, with evidence."""
    return (HERE.parents[2] / "examples" / "tutorial" / "plan.json").read_text(encoding="utf-8")


def write_sqlite(path: Path) -> None:
    """A store of this version, filled."""
    database = SqliteDatabase(path)
    SqlStore(database)
    fill(database, plan=a_plan())
    database.close_all()


def main() -> None:
    """Write both files."""
    version = store_schema.VERSION
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.sqlite"
        write_sqlite(path)
        sqlite_file(version).write_bytes(path.read_bytes())
    server = PostgresServer()
    try:
        url = server.fresh_database()
        away = PostgresDatabase(url)
        SqlStore(away)
        fill(away, plan=a_plan())
        away.close_all()
        postgres_file(version).write_text(server.dump(url), encoding="utf-8")
    finally:
        server.close()


if __name__ == "__main__":
    main()
