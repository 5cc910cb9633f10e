"""The store in SQL, the same statements for SQLite and PostgreSQL; `Database` is all in which the two differ."""

import json
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar, get_args

from api.jobs.job import (
    FINISHED,
    LABEL,
    DamagedError,
    Event,
    Job,
    LeaseLostError,
    NewJob,
    Outcome,
    ProgressUpdate,
    Quota,
    Search,
    State,
)
from api.jobs.request_fields import shared_fields
from api.jobs.stores.batch_size import Portion
from api.jobs.stores.hashes import sha256_of
from api.jobs.stores.job_rows import (
    COLUMNS,
    FLAGS,
    event_of_row,
    find_job,
    hash_row,
    job_of_row,
    naming,
    require_sound,
    tell_event,
)
from api.jobs.stores.store import (
    STORE_FAILURES,
    GivenUpError,
    IdempotencyConflictError,
    QuotaError,
    StoreFullError,
    UnknownPageError,
)
from api.jobs.stores.store_schema import bring_up_to_date
from api.jobs.stores.transactions import Cursor, Database, Row

BATCH, BATCH_BYTES = 20, 32 * 2**20
"""Jobs that expire in one transaction, and what they may hold together at first; a larger one goes alone."""

EXPIRING_S, LEAST_BATCH_BYTES = 0.05, 2**20
"""How long such a transaction should take: where it takes longer, the next one takes less, but not less than this."""

KEYS = 1000
"""Idempotency keys that expire in one transaction."""

GIVEN_UP = 3
"""So many of them behind one another that were given up end expiry; housekeeping comes again in a minute."""

_HOUR_S = 3600.0
"""Period of the limit on submissions per key."""

KEPT = 30
"""Incumbents of a job that are kept, the latest ones, to look back at."""

GIVING_S = 0.3
"""How long a deletion on a full disk gives pages back, so that the next one has room."""

_MAX_TRIES = 20

T = TypeVar("T")


def freeing(database: Database, act: Callable[[], T]) -> T:
    """Do what ends or removes something; on a full disk with the room that is kept for that."""
    try:
        return act()
    except StoreFullError:
        if not database.give_up_reserve():
            raise
    done = act()
    with suppress(*STORE_FAILURES, OSError):
        database.give_space_back(seconds=GIVING_S)
        database.keep_reserve()
    return done


class SqlStore:
    """Keeps jobs, their best plans and their stories; every method is one transaction, safe from any thread."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.transaction() as cursor:
            database.lock_schema(cursor)
            bring_up_to_date(
                cursor,
                columns_of_jobs=database.columns(cursor, "jobs"),
                has_version=bool(database.columns(cursor, "schema_version")),
            )

    # ------------------------------------------------------------ asking

    def submit(
        self, job: NewJob, *, idempotency_key: str | None = None, body_sha256: str = "", quota: Quota | None = None
    ) -> tuple[Job, bool]:
        """Store a job and say whether it is new; the same key and body give the first job again.

        Raises IdempotencyConflictError if the key came with another body, QuotaError beyond the quota.
        """
        with self.database.transaction() as cursor:
            self.database.lock_tenant(cursor, job.tenant)
            now = self.database.now()
            if idempotency_key is not None and not _reserve(
                cursor, job.tenant, key=idempotency_key, body_sha256=body_sha256, job_id=job.id, now=now
            ):
                known = _recall(cursor, job.tenant, key=idempotency_key, body_sha256=body_sha256)
                if known is not None:
                    return known, False
                cursor.execute(
                    "UPDATE idempotency SET body_sha256 = ?, job_id = ? WHERE tenant = ? AND idempotency_key = ?",
                    (body_sha256, job.id, job.tenant, idempotency_key),
                )
            if quota is not None:
                _require_room(cursor, job, quota=quota, now=now)
            _insert(cursor, job, now=now)
            tell_event(cursor, job.id, kind="queued", now=now, data={"priority": job.priority})
            stored = find_job(cursor, job.id)
        assert stored is not None
        return stored, True

    def remember(self, tenant: str, *, idempotency_key: str, body_sha256: str, job_id: str) -> Job | None:
        """Let the key stand for a job that is there already; the job that it stands for since before, if it does.

        Raises IdempotencyConflictError as `submit` does.
        """
        with self.database.transaction() as cursor:
            self.database.lock_tenant(cursor, tenant)
            now = self.database.now()
            if _reserve(cursor, tenant, key=idempotency_key, body_sha256=body_sha256, job_id=job_id, now=now):
                return None
            return _recall(cursor, tenant, key=idempotency_key, body_sha256=body_sha256)

    def recall(self, tenant: str, *, idempotency_key: str, body_sha256: str) -> Job | None:
        """The job that an earlier submission with this key made, or None; IdempotencyConflictError: another body."""
        with self.database.transaction(is_writing=False) as cursor:
            return _recall(cursor, tenant, key=idempotency_key, body_sha256=body_sha256)

    def find_answer(self, asked: NewJob, *, gap: float) -> Job | None:
        """A finished job that answers the same request, and is kept and filed as it asks.

        A deterministic request is answered only by its twin; any other by a plan that is proved to `gap`.
        """
        kept = {"project": asked.project, "tags": asked.tags, "is_pinned": int(asked.is_pinned)}
        wanted = {"tenant": asked.tenant, "problem_key": asked.problem_key} | {k: v for k, v in kept.items() if v}
        is_good = "gap <= ?"
        if asked.is_deterministic:
            is_good = "is_deterministic = 1 AND stopped_by NOT IN ('time', 'user', 'memory') AND request_key = ?"
        found = self.database.read_first(
            f"SELECT {COLUMNS} FROM jobs WHERE {''.join(f'{name} = ? AND ' for name in wanted)}state = 'succeeded' "
            f"AND {is_good} ORDER BY gap, created_at, id LIMIT 1",
            (*wanted.values(), asked.request_key if asked.is_deterministic else gap),
        )
        return job_of_row(found)

    def find_plan_like(self, tenant: str, problem_key: str) -> str | None:
        """The best plan of the tenant for the same question, to start from."""
        found = (
            "SELECT text, plan_sha256 FROM plans JOIN jobs ON jobs.id = plans.job_id "
            "WHERE tenant = ? AND problem_key = ? ORDER BY incumbent_ns, jobs.id LIMIT 1"
        )
        return self._sound_text(found, (tenant, problem_key), what="a plan for the same question")

    # ------------------------------------------------------------ working

    def claim(self, worker: str, *, lease_s: float) -> Job | None:
        """The next job for `worker`, or None; expired leases are put back first.

        The tenant that has least running and was served longest ago comes next, with its most urgent job.
        """
        for _ in range(_MAX_TRIES):
            with self.database.transaction() as cursor:
                _put_back(cursor, now=self.database.lease_now(), all_running=False)
                job_id = _next_waiting(cursor)
            if job_id is None:
                return None
            try:
                job = self._claim(job_id, worker, lease_s=lease_s)
            except DamagedError:
                self._fail_damaged(job_id)  # or nobody would come after it
            else:
                if job is not None:
                    return job
        return None

    def _claim(self, job_id: str, worker: str, *, lease_s: float) -> Job | None:
        """None if another worker was faster."""
        with self.database.transaction() as cursor:
            now = self.database.now()
            cursor.execute(
                "UPDATE jobs SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = ?, "
                "started_at = COALESCE(started_at, ?), version = version + 1 WHERE id = ? AND state = 'queued'",
                (worker, self.database.lease_now() + lease_s, now, job_id),
            )
            if cursor.rowcount != 1:
                return None
            job = find_job(cursor, job_id)
            assert job is not None
            _serve(cursor, job.tenant)
            tell_event(cursor, job.id, kind="started", now=now, data={"attempt": job.attempt})
            return job

    def _fail_damaged(self, job_id: str) -> None:
        """It ends without its row being read."""
        error = json.dumps({"code": "damaged", "detail": "the row of the job cannot be read"})
        with self.database.transaction() as cursor:
            cursor.execute(
                "UPDATE jobs SET state = 'failed', error = ?, finished_at = ?, worker = NULL, lease_until = NULL, "
                "phase = NULL, version = version + 1 WHERE id = ? AND state = 'queued'",
                (error, self.database.now(), job_id),
            )

    def extend(self, job: Job, *, lease_s: float) -> Job:
        """Hold the job for longer; raises LeaseLostError if it is no longer the caller's, as all that follow do."""
        with self.database.transaction() as cursor:
            present = self._held(cursor, job)
            until = self.database.lease_now() + lease_s
            cursor.execute("UPDATE jobs SET lease_until = ? WHERE id = ?", (until, job.id))
            return present

    def _held(self, cursor: Cursor, job: Job) -> Job:
        """The job as it is now, which stays the caller's until the transaction ends; raises LeaseLostError."""
        mine = f"SELECT id FROM jobs WHERE id = ? AND attempt = ? AND state = 'running'{self.database.row_lock}"
        cursor.execute(mine, (job.id, job.attempt))
        if cursor.fetchone() is None:
            raise LeaseLostError(job.id)
        present = find_job(cursor, job.id)
        assert present is not None
        return present

    def report(self, job: Job, update: ProgressUpdate) -> None:
        """Write down a step of the solver, with its plan; row, plan and story move together."""
        with self.database.transaction() as cursor:
            before = self._held(cursor, job)
            update = _without_worse(update, before)
            _write(cursor, job.id, values=_columns_of(update))
            if update.plan is not None:
                _keep_plan(cursor, job.id, text=update.plan)
            hash_row(cursor, job.id)
            now = self.database.now()
            for kind, data in _story(before, update):
                tell_event(cursor, job.id, kind=kind, now=now, data=data)
            if update.plan is not None:
                _keep_incumbent(cursor, job.id, text=update.plan)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """End the job."""
        with self.database.transaction() as cursor:
            _conclude(cursor, self._held(cursor, job), outcome=outcome, now=self.database.now())

    def release(self, job: Job, *, spent_s: float, is_crash: bool) -> None:
        """Give the job back to the queue, with what was found."""
        with self.database.transaction() as cursor:
            cursor.execute(
                "UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, crashes = crashes + ?, "
                "spent_s = spent_s + ?, version = version + 1 WHERE id = ? AND attempt = ? AND state = 'running'",
                (int(is_crash), spent_s, job.id, job.attempt),
            )
            if cursor.rowcount != 1:
                raise LeaseLostError(job.id)
            text = "the solver died; queued again" if is_crash else "the service stops; queued again"
            tell_event(cursor, job.id, kind="log", now=self.database.now(), data={"message": text})

    def put_back(self, *, all_running: bool = False) -> int:
        """Queue jobs whose lease has run out again (or all that run); the answer is how many."""
        with self.database.transaction() as cursor:
            return _put_back(cursor, now=self.database.lease_now(), all_running=all_running)

    # ------------------------------------------------------------ looking

    def get(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        """A tenant's job, or any with `tenant=None`; None where there is none."""
        with naming(f"the row of the plan {job_id}"), self.database.transaction(is_writing=False) as cursor:
            job = find_job(cursor, job_id)
        return job if job is not None and tenant in (None, job.tenant) else None

    def search(self, tenant: str, query: Search, *, limit: int) -> Sequence[Job]:
        """Those of the tenant's jobs that are meant, latest first; raises UnknownPageError."""
        try:
            return self._search(tenant, query, limit=limit)
        except DamagedError:
            self._name_the_damaged(tenant)
            raise

    def _name_the_damaged(self, tenant: str) -> None:
        """Raise DamagedError for the latest of the tenant's plans whose row cannot be read, if there is one."""
        ids = "SELECT id FROM jobs WHERE tenant = ? ORDER BY created_at DESC, id"
        for (job_id,) in self.database.read(ids, (tenant,)):
            self.get(str(job_id))

    def _search(self, tenant: str, query: Search, *, limit: int) -> Sequence[Job]:
        with self.database.transaction(is_writing=False) as cursor:
            conditions, values = _conditions(query)
            if query.after is not None:
                job_id, _, moment = query.after.partition("@")
                cursor.execute("SELECT created_at FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant))
                last = float(moment) if moment else _first(cursor.fetchone())
                if last is None:
                    raise UnknownPageError(job_id)
                conditions += " AND (created_at < ? OR (created_at = ? AND id > ?))"
                values += [last, last, job_id]
            cursor.execute(
                f"SELECT {COLUMNS} FROM jobs WHERE tenant = ?{conditions} ORDER BY created_at DESC, id LIMIT ?",
                (tenant, *values, limit),
            )
            return [job for job in map(job_of_row, cursor.fetchall()) if job is not None]

    def projects(self, tenant: str) -> Sequence[tuple[str, int, float]]:
        """The tenant's projects: name, number of jobs, when the last one was submitted; latest first."""
        rows = self.database.read(
            "SELECT project, COUNT(*), MAX(created_at) FROM jobs WHERE tenant = ? AND project <> '' "
            "GROUP BY project ORDER BY MAX(created_at) DESC, project",
            (tenant,),
        )
        if not all(isinstance(name, str) and LABEL.fullmatch(name) for name, _, _ in rows):
            self._name_the_damaged(tenant)
            raise DamagedError("the name of a project")
        return [(name, int(count), float(last)) for name, count, last in rows]

    def file(self, job_id: str, tenant: str, *, project: str, tags: str) -> Job | None:
        """File a job under a project and tags."""
        return self._mark(job_id, tenant, project=project, tags=tags)

    def _mark(self, job_id: str, tenant: str, **values: object) -> Job | None:
        """Set columns of the tenant's job of which its worker knows nothing."""
        with self.database.transaction() as cursor:
            job = find_job(cursor, job_id, lock=self.database.row_lock)
            if job is None or job.tenant != tenant:
                return None
            _write(cursor, job_id, values=values)
            hash_row(cursor, job_id)
            return find_job(cursor, job_id)

    def request_text(self, job_id: str) -> str:
        """The request of a job; raises LeaseLostError if there is no such job any more."""
        asked = "SELECT text, sha256 FROM requests WHERE job_id = ?"
        text = self._sound_text(asked, (job_id,), what=f"the request of the plan {job_id}")
        if text is None:
            raise LeaseLostError(job_id)
        return text

    def plan_text(self, job_id: str) -> str | None:
        """The best verified plan of a job, final or not."""
        found = "SELECT text, plan_sha256 FROM plans JOIN jobs ON jobs.id = plans.job_id WHERE job_id = ?"
        return self._sound_text(found, (job_id,), what=f"the document of the plan {job_id}")

    def _sound_text(self, sql: str, values: Sequence[Any], *, what: str) -> str | None:
        """The text that a statement finds with its hash, if it finds one."""
        with naming(what):
            row = self.database.read_first(sql, values)
        return None if row is None else require_sound(row[0], sha256=row[1], what=what)

    def incumbent_text(self, job_id: str, seq: int) -> str | None:
        """The plan that incumbent event `seq` told of, if it is kept."""
        what = f"incumbent {seq} of the plan {job_id}"
        with naming(what):
            kept = "SELECT text FROM incumbents WHERE job_id = ? AND seq = ?"
            packed = _first(self.database.read_first(kept, (job_id, seq)))
        try:
            return None if packed is None else zlib.decompress(b64decode(packed)).decode()
        except (ValueError, TypeError, zlib.error):  # the packed text carries a checksum
            raise DamagedError(what) from None

    def incumbents(self, job_id: str) -> Sequence[int]:
        """Numbers of the incumbent events whose plans are kept, ascending."""
        rows = self.database.read("SELECT seq FROM incumbents WHERE job_id = ? ORDER BY seq", (job_id,))
        numbers = [row[0] for row in rows]
        if not all(isinstance(number, int) for number in numbers):
            raise DamagedError(f"an incumbent of the plan {job_id}")
        return numbers

    def drawing(self, job_id: str, what: str) -> str | None:
        """What was made of a job's plan before, by its name, or None."""
        what_of = f"a drawing of the plan {job_id}"
        with naming(what_of):
            kept = "SELECT text, sha256 FROM drawings WHERE job_id = ? AND what = ?"
            row = self.database.read_first(kept, (job_id, what))
        if row is None or row[1] is None:  # an earlier release, whose pages do not ask for it any more, kept no hash
            return None if row is None else str(row[0])
        return require_sound(row[0], sha256=row[1], what=what_of)

    def keep_drawing(self, job_id: str, what: str, *, text: str) -> None:
        """Keep what was made of a job's plan, with the job."""
        with self.database.transaction() as cursor:
            cursor.execute(f"SELECT id FROM jobs WHERE id = ?{self.database.row_lock}", (job_id,))
            if cursor.fetchone() is None:
                return
            cursor.execute(
                "INSERT INTO drawings (job_id, what, text, sha256) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (job_id, what) DO NOTHING",
                (job_id, what, text, sha256_of(text)),
            )
            if cursor.rowcount == 1:
                size = len(text.encode())
                cursor.execute("UPDATE jobs SET drawn_bytes = drawn_bytes + ? WHERE id = ?", (size, job_id))

    def events(self, job_id: str, *, after: int) -> Sequence[Event]:
        """The story from `after` on."""
        with naming(f"the story of the plan {job_id}"):
            told = "SELECT seq, kind, at, data FROM events WHERE job_id = ? AND seq > ? ORDER BY seq"
            found = [event_of_row(job_id, row) for row in self.database.read(told, (job_id, after))]
        if [event.seq for event in found] != list(range(after + 1, after + 1 + len(found))):
            raise DamagedError(f"the story of the plan {job_id}")
        return found

    def versions(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The present version of each job that exists."""
        if not job_ids:
            return {}
        marks = ", ".join("?" * len(job_ids))
        return dict(self.database.read(f"SELECT id, version FROM jobs WHERE id IN ({marks})", list(job_ids)))

    # ------------------------------------------------------------ changing

    def stop(self, job_id: str, tenant: str) -> Job | None:
        """Ask to finish now; a job that waits is cancelled, or succeeds with the plan it has."""
        return freeing(self.database, lambda: self._stop(job_id, tenant))

    def _stop(self, job_id: str, tenant: str) -> Job | None:
        with self.database.transaction() as cursor:
            cursor.execute(
                "UPDATE jobs SET is_stopped = 1, version = version + 1 "
                "WHERE id = ? AND tenant = ? AND state IN ('queued', 'running') AND is_stopped = 0",
                (job_id, tenant),
            )
            job = find_job(cursor, job_id, lock=self.database.row_lock)
            if job is None or job.tenant != tenant:
                return None
            if job.state == "queued":
                state, status = ("succeeded", "feasible") if job.plan_sha256 else ("cancelled", "unknown")
                outcome = Outcome(state=state, stopped_by="user", solution_status=status)  # type: ignore[arg-type]
                _conclude(cursor, job, outcome=outcome, now=self.database.now())
            return find_job(cursor, job_id)

    def pin(self, job_id: str, tenant: str, *, is_pinned: bool) -> Job | None:
        """Keep a job from retention, or no longer."""
        return self._mark(job_id, tenant, is_pinned=int(is_pinned))

    def forget(self, job_id: str, tenant: str) -> bool:
        """The row goes, and with it the lease of the one that works on it."""
        return freeing(self.database, lambda: self._forget(job_id, tenant))

    def _forget(self, job_id: str, tenant: str) -> bool:
        with self.database.transaction() as cursor:
            returned = "RETURNING id, tenant, key_id, created_at"
            cursor.execute(f"DELETE FROM jobs WHERE id = ? AND tenant = ? {returned}", (job_id, tenant))
            gone = cursor.fetchall()
            _forget_rest(cursor, gone, now=self.database.now())
            return bool(gone)

    def expire(self, *, older_than_s: float, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Remove finished jobs that nobody pinned, until it should stop; the answer is how many."""
        before, count, given_up = self.database.now() - older_than_s, 0, 0
        batch = Portion(least=LEAST_BATCH_BYTES, most=BATCH_BYTES, goal_s=EXPIRING_S)
        for state in FINISHED:
            while True:
                begin, gone = time.monotonic(), 0
                some = partial(self._expire_some, state, before=before, most_bytes=batch.size, given_up=given_up)
                try:
                    gone = freeing(self.database, some)
                    given_up = 0
                except GivenUpError:
                    given_up += 1
                if not (gone or given_up):
                    break
                count += gone
                took_s = time.monotonic() - begin
                batch.learn(took_s)
                if should_stop() or given_up == GIVEN_UP:
                    return count
                self.database.let_others_in(took_s)
        while freeing(self.database, lambda: self._expire_keys(before=before)):
            self.database.let_others_in(0.0)
        self.database.give_space_back()
        return count

    def _expire_keys(self, *, before: float) -> int:
        """Idempotency keys outlive jobs that were deleted, so that no other body takes them, but not for ever."""
        with self.database.transaction() as cursor:
            cursor.execute(
                "DELETE FROM idempotency WHERE (tenant, idempotency_key) IN (SELECT tenant, idempotency_key "
                "FROM idempotency WHERE created_at < ? "
                "AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = idempotency.job_id) LIMIT ?)",
                (before, KEYS),
            )
            return cursor.rowcount

    def _expire_some(self, state: str, *, before: float, most_bytes: int, given_up: int) -> int:
        with self.database.transaction() as cursor:
            self.database.begin_housekeeping(cursor, given_up=given_up)
            cursor.execute(
                "SELECT id, request_bytes + plan_bytes + drawn_bytes FROM jobs "
                "WHERE state = ? AND is_pinned = 0 AND finished_at < ? LIMIT ?",
                (state, before, BATCH),
            )
            chosen = _few(cursor.fetchall(), most_bytes=most_bytes)
            if not chosen:
                return 0
            marks = ", ".join("?" * len(chosen))
            returned = "RETURNING id, tenant, key_id, created_at"
            cursor.execute(f"DELETE FROM jobs WHERE id IN ({marks}) AND is_pinned = 0 {returned}", chosen)
            gone = cursor.fetchall()
            _forget_rest(cursor, gone, now=self.database.now())
            return len(gone)

    # ------------------------------------------------------------ counting

    def count_states(self) -> dict[str, int]:
        """Jobs by state."""
        known = ", ".join(f"'{state}'" for state in get_args(State))
        state = f"CASE WHEN state IN ({known}) THEN state ELSE 'damaged' END"
        return dict(self.database.read(f"SELECT {state} AS known, COUNT(*) FROM jobs GROUP BY known"))

    def queue_age_s(self) -> float:
        """Seconds since the oldest job that waits was submitted; 0 without one."""
        first = _first(self.database.read_first("SELECT MIN(created_at) FROM jobs WHERE state = 'queued'"))
        if not isinstance(first, float | None):
            raise DamagedError("the row of a plan that waits")
        return 0.0 if first is None else max(0.0, self.database.now() - first)

    def close_all(self) -> None:
        """Release all connections."""
        self.database.close_all()


def _first(row: Row | None) -> Any:
    return None if row is None else row[0]


def _few(rows: Sequence[Row], *, most_bytes: int) -> list[str]:
    """The first of (id, bytes), up to so many bytes together, at least one."""
    ends = accumulate(size for _, size in rows)
    fitting = sum(end <= most_bytes for end in ends)
    return [job_id for job_id, _ in rows[: max(1, fitting)]]


def _conditions(query: Search) -> tuple[str, list[Any]]:
    """What follows the tenant in a WHERE, and its parameters."""
    tag = None if query.tag is None else f"% {_plainly(query.tag)} %"
    name = None if query.name is None else f"%{_plainly(query.name.lower())}%"
    begin = None if query.sha256 is None else f"{query.sha256}%"
    asked: tuple[tuple[str, list[Any]], ...] = (
        ("project = ?", [query.project]),
        ("state = ?", [query.state]),
        ("created_at >= ?", [query.since]),
        ("created_at < ?", [query.until]),
        ("tags LIKE ? ESCAPE '!'", [tag]),
        ("LOWER(name) LIKE ? ESCAPE '!'", [name]),
        ("name = ?", [query.model]),
        ("(plan_sha256 LIKE ? OR profile_sha256 LIKE ?)", [begin, begin]),
    )
    meant = [(condition, values) for condition, values in asked if values[0] is not None]
    return "".join(f" AND {condition}" for condition, _ in meant), [value for _, values in meant for value in values]


def _plainly(text: str) -> str:
    """The text with nothing in it that LIKE would take for more than it is."""
    return "".join(f"!{letter}" if letter in "!%_" else letter for letter in text)


def _reserve(cursor: Cursor, tenant: str, *, key: str, body_sha256: str, job_id: str, now: float) -> bool:
    """Take the idempotency key; False if it is taken, by a job that is gone or not."""
    cursor.execute(
        "INSERT INTO idempotency (tenant, idempotency_key, body_sha256, job_id, created_at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (tenant, idempotency_key) DO NOTHING",
        (tenant, key, body_sha256, job_id, now),
    )
    return cursor.rowcount == 1


def _recall(cursor: Cursor, tenant: str, *, key: str, body_sha256: str) -> Job | None:
    cursor.execute(
        "SELECT body_sha256, job_id FROM idempotency WHERE tenant = ? AND idempotency_key = ?", (tenant, key)
    )
    row = cursor.fetchone()
    if row is None:
        return None
    if not isinstance(row[0], str) or len(row[0]) != len(body_sha256):
        raise DamagedError("what an Idempotency-Key stands for")
    if row[0] != body_sha256:
        raise IdempotencyConflictError(key)
    return find_job(cursor, row[1])


def _insert(cursor: Cursor, job: NewJob, *, now: float) -> None:
    values = {field.name: getattr(job, field.name) for field in fields(NewJob) if field.name != "request"}
    values |= {"request_bytes": len(job.request.encode())}
    values |= {name: int(values[name]) for name in FLAGS & set(values)}
    values |= {"state": "queued", "created_at": now, "attempt": 0, "crashes": 0, "is_stopped": 0, "spent_s": 0.0}
    values |= {"version": 1}
    marks = ", ".join("?" * len(values))
    cursor.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", list(values.values()))
    cursor.execute(
        "INSERT INTO requests (job_id, text, sha256) VALUES (?, ?, ?)", (job.id, job.request, sha256_of(job.request))
    )
    hash_row(cursor, job.id)


def _require_room(cursor: Cursor, job: NewJob, *, quota: Quota, now: float) -> None:
    """Raise QuotaError for one job too many; what is rolled back with it leaves nothing behind."""
    unfinished = "SELECT COUNT(*) FROM jobs WHERE tenant = ? AND state IN ('queued', 'running')"
    held = "SELECT COALESCE(SUM(request_bytes + plan_bytes + drawn_bytes), 0) FROM jobs WHERE tenant = ?"
    cursor.execute(unfinished, (job.tenant,))
    if _first(cursor.fetchone()) >= quota.unfinished_jobs:
        raise QuotaError("too_many_jobs", quota.unfinished_jobs)
    if _count_submitted(cursor, job.tenant, key_id=job.key_id, since=now - _HOUR_S) >= quota.hourly_jobs:
        raise QuotaError("hourly_limit", quota.hourly_jobs)
    cursor.execute(held, (job.tenant,))
    if _first(cursor.fetchone()) + len(job.request.encode()) > quota.stored_bytes:
        raise QuotaError("too_many_bytes", quota.stored_bytes)


def _count_submitted(cursor: Cursor, tenant: str, *, key_id: str | None, since: float) -> int:
    """Jobs that came with the key (of the tenant, without one) after that moment, deleted ones included."""
    whose, value = ("tenant", tenant) if key_id is None else ("key_id", key_id)
    count, most = 0, since + 2 * _HOUR_S  # later ones came before the clock was set back
    for table in ("jobs", "deleted_jobs"):
        counted = f"SELECT COUNT(*) FROM {table} WHERE {whose} = ? AND created_at BETWEEN ? AND ?"
        cursor.execute(counted, (value, since, most))
        count += _first(cursor.fetchone())
    return count


def _story(before: Job, update: ProgressUpdate) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that a step amounts to."""
    common = {"gap": update.gap, "phase": update.phase}
    if update.incumbent_ns is not None and update.incumbent_ns != before.incumbent_ns:
        yield "incumbent", {"incumbent_ns": update.incumbent_ns, "source": update.source} | common
    if update.lower_bound_ns is not None and update.lower_bound_ns != before.lower_bound_ns:
        yield "bound", {"lower_bound_ns": update.lower_bound_ns} | common


def _without_worse(update: ProgressUpdate, before: Job) -> ProgressUpdate:
    """A search that begins anew finds worse plans than there were before, and weaker bounds; the best ones stay.

    A plan as good as the best is most often the same one: the one that told of it first found it.
    """
    best, bound, told_ns = before.incumbent_ns, before.lower_bound_ns, update.incumbent_ns
    if best is not None and told_ns is not None and told_ns >= best:
        update = replace(update, source=before.source or update.source)
        if told_ns > best:
            update = replace(update, incumbent_ns=None, gap=None, plan=None)
    if bound is not None and update.lower_bound_ns is not None and update.lower_bound_ns < bound:
        update = replace(update, lower_bound_ns=None, gap=None)
    best, bound = update.incumbent_ns or best, update.lower_bound_ns or bound
    if update.gap is None and best is not None and bound is not None:
        update = replace(update, gap=(best - bound) / max(best, 1))
    return update


def _write(cursor: Cursor, job_id: str, *, values: dict[str, Any]) -> None:
    columns = "".join(f"{name} = ?, " for name in values)
    cursor.execute(f"UPDATE jobs SET {columns}version = version + 1 WHERE id = ?", (*values.values(), job_id))


def _columns_of(told: ProgressUpdate | Outcome) -> dict[str, Any]:
    """Columns of the names of its fields, but for the plan, which has a table; what is None stays as it is."""
    values = {name: value for name, value in shared_fields(told, Job).items() if value is not None}
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in values.items()}


def _keep_plan(cursor: Cursor, job_id: str, *, text: str) -> None:
    cursor.execute(
        "INSERT INTO plans (job_id, text) VALUES (?, ?) ON CONFLICT (job_id) DO UPDATE SET text = excluded.text",
        (job_id, text),
    )
    data = text.encode()
    cursor.execute(
        "UPDATE jobs SET plan_sha256 = ?, plan_bytes = ? WHERE id = ?",
        (sha256_of(text), len(data), job_id),
    )


def _keep_incumbent(cursor: Cursor, job_id: str, *, text: str) -> None:
    """Packed, under the number of the event that told of it."""
    packed = b64encode(zlib.compress(text.encode(), 1)).decode()
    cursor.execute(
        "INSERT INTO incumbents (job_id, seq, text) SELECT ?, MAX(seq), ? FROM events "
        "WHERE job_id = ? AND kind = 'incumbent' HAVING MAX(seq) IS NOT NULL "
        "ON CONFLICT (job_id, seq) DO UPDATE SET text = excluded.text",
        (job_id, packed, job_id),
    )
    cursor.execute(
        "DELETE FROM incumbents WHERE job_id = ? AND seq NOT IN "
        "(SELECT seq FROM incumbents WHERE job_id = ? ORDER BY seq DESC LIMIT ?)",
        (job_id, job_id, KEPT),
    )


def _conclude(cursor: Cursor, before: Job, *, outcome: Outcome, now: float) -> None:
    job_id = before.id
    last = shared_fields(outcome, ProgressUpdate) | {"phase": "end", "source": outcome.source or ""}
    for kind, data in _story(before, ProgressUpdate(**last)):
        tell_event(cursor, job_id, kind=kind, now=now, data=data)
    ended = {"finished_at": now, "worker": None, "lease_until": None, "phase": None}
    _write(cursor, job_id, values=_columns_of(outcome) | ended)
    if outcome.plan is not None:
        _keep_plan(cursor, job_id, text=outcome.plan)
    hash_row(cursor, job_id)
    job = find_job(cursor, job_id)
    assert job is not None
    data = {"state": job.state, "incumbent_ns": job.incumbent_ns, "lower_bound_ns": job.lower_bound_ns, "gap": job.gap}
    data["stopped_by"] = job.stopped_by
    tell_event(cursor, job_id, kind="done", now=now, data=data)
    _announce_end(cursor, job, now=now, data=data)


def _announce_end(cursor: Cursor, job: Job, *, now: float, data: dict[str, Any]) -> None:
    """What the tenant's webhooks are to hear is written down with the end, so that no crash comes in between."""
    told: dict[str, Any] = {"event": "plan.ended", "id": job.id, "href": f"/v1/plans/{job.id}"}
    told |= {"name": job.name, "project": job.project, "tags": job.tags.split(), "request_id": job.request_id}
    told |= {**data, "solution_status": job.solution_status, "plan_sha256": job.plan_sha256}
    announce(cursor, job, subject=job.id, told=told, now=now)


def announce(cursor: Cursor, job: Job, *, subject: str, told: dict[str, Any], now: float) -> int:
    """Write down what each webhook of the job's tenant is to hear, once per `subject`; returns how many will."""
    cursor.execute(
        "INSERT INTO deliveries (webhook_id, job_id, body, attempts, due_at) "
        "SELECT id, CAST(? AS TEXT), CAST(? AS TEXT), 0, CAST(? AS DOUBLE PRECISION) FROM webhooks WHERE tenant = ? "
        "ON CONFLICT (webhook_id, job_id) DO NOTHING",
        (subject, json.dumps(told), now, job.tenant),
    )
    return cursor.rowcount


def _put_back(cursor: Cursor, *, now: float, all_running: bool) -> int:
    cursor.execute(
        "UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, "
        "version = version + 1 WHERE state = 'running' AND (lease_until < ? OR ? = 1)",
        (now, int(all_running)),
    )
    return cursor.rowcount


def _next_waiting(cursor: Cursor) -> str | None:
    cursor.execute(
        "SELECT waiting.tenant FROM (SELECT DISTINCT tenant FROM jobs WHERE state = 'queued') AS waiting "
        "LEFT JOIN (SELECT tenant, COUNT(*) AS num FROM jobs WHERE state = 'running' GROUP BY tenant) AS busy "
        "ON busy.tenant = waiting.tenant LEFT JOIN tenants ON tenants.name = waiting.tenant "
        "ORDER BY COALESCE(busy.num, 0), COALESCE(tenants.served_at, 0), waiting.tenant LIMIT 1"
    )
    tenant = _first(cursor.fetchone())
    cursor.execute(
        "SELECT id FROM jobs WHERE state = 'queued' AND tenant = ? ORDER BY priority DESC, created_at, id LIMIT 1",
        (tenant,),
    )
    job_id: str | None = _first(cursor.fetchone())
    return job_id


def _serve(cursor: Cursor, tenant: str) -> None:
    """It was served last; a number in place of the time, which a clock may set back."""
    cursor.execute(
        "INSERT INTO tenants (name, served_at) SELECT CAST(? AS TEXT), COALESCE(MAX(served_at), 0) + 1 FROM tenants "
        "WHERE 1 = 1 ON CONFLICT (name) DO UPDATE SET served_at = excluded.served_at",
        (tenant,),
    )


def _forget_rest(cursor: Cursor, gone: Sequence[Row], *, now: float) -> None:
    """What belongs to jobs (id, tenant, key, submitted) whose rows are gone; their submissions count for an hour."""
    cursor.execute("DELETE FROM deleted_jobs WHERE created_at <= ?", (now - _HOUR_S,))
    for job_id, tenant, key_id, created_at in gone:
        if isinstance(created_at, float) and created_at > now - _HOUR_S:  # a damaged row goes all the same
            cursor.execute(
                "INSERT INTO deleted_jobs (tenant, key_id, created_at) VALUES (?, ?, ?)", (tenant, key_id, created_at)
            )
        for table in ("requests", "plans", "incumbents", "drawings", "events"):
            cursor.execute(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))
