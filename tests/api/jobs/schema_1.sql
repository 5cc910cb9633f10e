-- The table of jobs in version 1 of the schema.
CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key_id TEXT, name TEXT NOT NULL, state TEXT NOT NULL,
        request TEXT NOT NULL, problem_key TEXT NOT NULL, request_key TEXT NOT NULL, is_deterministic INTEGER NOT NULL,
        priority INTEGER NOT NULL, is_pinned INTEGER NOT NULL, base_id TEXT, change TEXT,
        created_at DOUBLE PRECISION NOT NULL, started_at DOUBLE PRECISION, finished_at DOUBLE PRECISION,
        attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, worker TEXT, lease_until DOUBLE PRECISION,
        is_stopped INTEGER NOT NULL, spent_s DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL, phase TEXT,
        incumbent_ns BIGINT, lower_bound_ns BIGINT, gap DOUBLE PRECISION, source TEXT, solution_status TEXT,
        stopped_by TEXT, error TEXT, plan_sha256 TEXT)
