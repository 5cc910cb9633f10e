-- Version 1 of the schema.
CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key_id TEXT, name TEXT NOT NULL, state TEXT NOT NULL,
        request TEXT NOT NULL, problem_key TEXT NOT NULL, request_key TEXT NOT NULL, is_deterministic INTEGER NOT NULL,
        priority INTEGER NOT NULL, is_pinned INTEGER NOT NULL, base_id TEXT, change TEXT,
        created_at DOUBLE PRECISION NOT NULL, started_at DOUBLE PRECISION, finished_at DOUBLE PRECISION,
        attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, worker TEXT, lease_until DOUBLE PRECISION,
        is_stopped INTEGER NOT NULL, spent_s DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL, phase TEXT,
        incumbent_ns BIGINT, lower_bound_ns BIGINT, gap DOUBLE PRECISION, source TEXT, solution_status TEXT,
        stopped_by TEXT, error TEXT, plan_sha256 TEXT);
CREATE INDEX jobs_answers ON jobs (tenant, problem_key);
CREATE TABLE plans (job_id TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE events (job_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL, data TEXT NOT NULL, PRIMARY KEY (job_id, seq));
CREATE TABLE idempotency (tenant TEXT NOT NULL, idempotency_key TEXT NOT NULL,
        body_sha256 TEXT NOT NULL, job_id TEXT NOT NULL, PRIMARY KEY (tenant, idempotency_key));
CREATE INDEX idempotency_of_job ON idempotency (job_id);
CREATE TABLE tenants (name TEXT PRIMARY KEY, served_at DOUBLE PRECISION NOT NULL);
CREATE TABLE api_keys (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL,
        sha256 TEXT NOT NULL, scopes TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, expires_at DOUBLE PRECISION,
        revoked_at DOUBLE PRECISION, hourly_jobs INTEGER, concurrent_jobs INTEGER);
