"""The tables of the store, their version, and the way from every earlier version to this one.

A release that changes a table raises `VERSION`, adds the statements that lead there to `STEPS`, and leaves those of
earlier versions alone. The tests open stores that earlier releases wrote, several at once, and end one in the middle.

No library does the few lines of `bring_up_to_date`. yoyo 9 commits a step, and that it was made, in two transactions,
and a killed process leaves its lock behind. alembic 1.20 wants a connection of SQLAlchemy's and its own table of
versions beside this one, by which earlier releases refuse a store: more lines than it takes away.
"""

from collections.abc import Callable

from api.jobs.stores.islands_gone import drop_islands
from api.jobs.stores.transactions import Cursor

VERSION = 8
"""Of the schema. 1: request texts stood in the rows of `jobs`. 2: no projects, tags, incumbents, drawings, workers,
audit. 3: no bounds of solvers, no places of deleted jobs. 4: no islands. 5: no hashes of requests and drawings.
6: no hashes of rows. 7: islands, searches of several workers for one job."""

_LOOKS = (
    "CREATE INDEX IF NOT EXISTS jobs_waiting ON jobs (state, tenant, priority, created_at)",
    "CREATE INDEX IF NOT EXISTS jobs_recent ON jobs (tenant, created_at)",
    "CREATE INDEX IF NOT EXISTS jobs_answers ON jobs (tenant, problem_key)",
    "CREATE INDEX IF NOT EXISTS jobs_old ON jobs (state, is_pinned, finished_at)",
    "CREATE INDEX IF NOT EXISTS jobs_of_key ON jobs (key_id, created_at)",
    "CREATE INDEX IF NOT EXISTS jobs_held ON jobs (tenant, request_bytes, plan_bytes, drawn_bytes)",
    "CREATE INDEX IF NOT EXISTS jobs_of_project ON jobs (tenant, project, created_at)",
    "CREATE INDEX IF NOT EXISTS jobs_of_profile ON jobs (tenant, profile_sha256)",
    "CREATE INDEX IF NOT EXISTS jobs_of_plan ON jobs (tenant, plan_sha256)",
)

TABLES = (
    """CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key_id TEXT, name TEXT NOT NULL, state TEXT NOT NULL,
        request_bytes BIGINT NOT NULL, problem_key TEXT NOT NULL, request_key TEXT NOT NULL,
        is_deterministic INTEGER NOT NULL, priority INTEGER NOT NULL, is_pinned INTEGER NOT NULL, base_id TEXT,
        change TEXT, created_at DOUBLE PRECISION NOT NULL, started_at DOUBLE PRECISION, finished_at DOUBLE PRECISION,
        attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, worker TEXT, lease_until DOUBLE PRECISION,
        is_stopped INTEGER NOT NULL, spent_s DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL, phase TEXT,
        incumbent_ns BIGINT, lower_bound_ns BIGINT, gap DOUBLE PRECISION, source TEXT, solution_status TEXT,
        stopped_by TEXT, error TEXT, plan_sha256 TEXT, request_id TEXT, project TEXT NOT NULL DEFAULT '',
        tags TEXT NOT NULL DEFAULT '', profile_sha256 TEXT, plan_bytes BIGINT NOT NULL DEFAULT 0,
        drawn_bytes BIGINT NOT NULL DEFAULT 0, solver_bound_ns BIGINT, row_sha256 TEXT)""",
    *_LOOKS,
    """CREATE TABLE IF NOT EXISTS deleted_jobs (tenant TEXT NOT NULL, key_id TEXT,
        created_at DOUBLE PRECISION NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS deleted_jobs_recent ON deleted_jobs (created_at)",
    "CREATE TABLE IF NOT EXISTS requests (job_id TEXT PRIMARY KEY, text TEXT NOT NULL, sha256 TEXT)",
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS plans (job_id TEXT PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS incumbents (job_id TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL,
        PRIMARY KEY (job_id, seq))""",
    """CREATE TABLE IF NOT EXISTS drawings (job_id TEXT NOT NULL, what TEXT NOT NULL, text TEXT NOT NULL,
        sha256 TEXT, PRIMARY KEY (job_id, what))""",
    """CREATE TABLE IF NOT EXISTS events (job_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL, data TEXT NOT NULL, PRIMARY KEY (job_id, seq))""",
    """CREATE TABLE IF NOT EXISTS idempotency (tenant TEXT NOT NULL, idempotency_key TEXT NOT NULL,
        body_sha256 TEXT NOT NULL, job_id TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, idempotency_key))""",
    "CREATE INDEX IF NOT EXISTS idempotency_old ON idempotency (created_at)",
    "CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, served_at DOUBLE PRECISION NOT NULL)",
    """CREATE TABLE IF NOT EXISTS workers (name TEXT PRIMARY KEY, num_slots INTEGER NOT NULL,
        started_at DOUBLE PRECISION NOT NULL, seen_at DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS api_keys (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL,
        sha256 TEXT NOT NULL, scopes TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, expires_at DOUBLE PRECISION,
        revoked_at DOUBLE PRECISION, hourly_jobs INTEGER, concurrent_jobs INTEGER, last_used_at DOUBLE PRECISION,
        row_sha256 TEXT)""",
    """CREATE TABLE IF NOT EXISTS audit (id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, actor TEXT NOT NULL,
        action TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS audit_recent ON audit (at)",
    """CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, url TEXT NOT NULL,
        secret TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, row_sha256 TEXT)""",
    """CREATE TABLE IF NOT EXISTS deliveries (webhook_id TEXT NOT NULL, job_id TEXT NOT NULL, body TEXT NOT NULL,
        attempts INTEGER NOT NULL, due_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (webhook_id, job_id))""",
    "CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (due_at)",
)
"""Every statement may run again on a store that has it already."""

CONTENTS = (
    *("jobs", "requests", "plans", "incumbents", "drawings", "events", "idempotency", "tenants", "api_keys"),
    *("audit", "webhooks", "deliveries", "deleted_jobs"),
)
"""The tables that a backup holds: all but who works just now and the version, which it states itself."""

STEPS: dict[int, tuple[str | Callable[[Cursor], None], ...]] = {
    1: (
        "CREATE TABLE requests (job_id TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "INSERT INTO requests (job_id, text) SELECT id, request FROM jobs",
        "ALTER TABLE jobs ADD COLUMN request_bytes BIGINT NOT NULL DEFAULT 0",
        # letters stand for the bytes of old texts: canonical JSON is ASCII but for names
        "UPDATE jobs SET request_bytes = LENGTH(request)",
        "ALTER TABLE jobs DROP COLUMN request",
    ),
    2: (
        "ALTER TABLE jobs ADD COLUMN request_id TEXT",
        "ALTER TABLE jobs ADD COLUMN project TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN tags TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN profile_sha256 TEXT",
        "ALTER TABLE jobs ADD COLUMN plan_bytes BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE jobs ADD COLUMN drawn_bytes BIGINT NOT NULL DEFAULT 0",
        "UPDATE jobs SET plan_bytes = COALESCE((SELECT LENGTH(text) FROM plans WHERE job_id = jobs.id), 0)",
        "DROP INDEX IF EXISTS jobs_bytes",
        "DROP INDEX IF EXISTS idempotency_of_job",
        "ALTER TABLE idempotency ADD COLUMN created_at DOUBLE PRECISION NOT NULL DEFAULT 0",
        "UPDATE idempotency SET created_at = COALESCE((SELECT created_at FROM jobs WHERE id = job_id), 0)",
        "ALTER TABLE api_keys ADD COLUMN last_used_at DOUBLE PRECISION",
    ),
    3: (
        "ALTER TABLE jobs ADD COLUMN solver_bound_ns BIGINT",
        "UPDATE jobs SET solver_bound_ns = incumbent_ns "
        "WHERE solution_status = 'optimal' AND stopped_by = 'complete_search'",
    ),
    4: ("ALTER TABLE jobs ADD COLUMN islands INTEGER NOT NULL DEFAULT 1",),
    5: (
        "ALTER TABLE requests ADD COLUMN sha256 TEXT",
        "CREATE TABLE IF NOT EXISTS drawings (job_id TEXT NOT NULL, what TEXT NOT NULL, text TEXT NOT NULL, "
        "PRIMARY KEY (job_id, what))",  # stores of version 2 have none
        "ALTER TABLE drawings ADD COLUMN sha256 TEXT",
    ),
    6: (
        "CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, url TEXT NOT NULL, "
        "secret TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL)",  # stores of version 1 have none
        *(f"ALTER TABLE {table} ADD COLUMN row_sha256 TEXT" for table in ("jobs", "api_keys", "webhooks")),
    ),
    7: (drop_islands,),
}
"""What leads from a version to the next one: statements, or what a row's hash needs."""


def bring_up_to_date(cursor: Cursor, *, columns_of_jobs: set[str], has_version: bool) -> int | None:
    """Make the tables, or lead those of an earlier version to this one; the answer is that version, None if none.

    Raises ValueError for a store of a later version, which is left as it is.
    """
    stated = _stated_version(cursor, columns_of_jobs, has_version=has_version)
    if stated is not None and stated > VERSION:
        raise ValueError(
            f"the store has schema version {stated}, this program supports {VERSION}; install a newer pipeplan"
        )
    for version in range(stated or VERSION, VERSION):
        for statement in STEPS[version]:
            if isinstance(statement, str):
                cursor.execute(statement)
            else:
                statement(cursor)
    for statement in TABLES:
        cursor.execute(statement)
    if stated != VERSION:
        cursor.execute("DELETE FROM schema_version")
        cursor.execute("INSERT INTO schema_version (version) VALUES (?)", (VERSION,))
    return stated


def _stated_version(cursor: Cursor, columns_of_jobs: set[str], *, has_version: bool) -> int | None:
    if not columns_of_jobs:
        return None
    if "request" in columns_of_jobs:  # version 1 did not state itself
        return 1
    if not has_version:
        return 2
    cursor.execute("SELECT MAX(version) FROM schema_version")
    row = cursor.fetchone()
    return 2 if row is None or row[0] is None else int(row[0])
