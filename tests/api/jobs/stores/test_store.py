"""The contract of every job store; each engine answers the same questions."""

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg
import pytest

from api.jobs.job import Job, LeaseLostError, NewJob, Outcome, ProgressUpdate, Quota
from api.jobs.stores import sql_store
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import BATCH, KEPT, SqlStore
from api.jobs.stores.store import IdempotencyConflictError, QuotaError
from tests.api.jobs.stores.looks import ping, recent
from tests.api.postgres import PostgresServer
from tests.own_time import tell_time


def new_job(tenant: str = "a", **changes: object) -> NewJob:
    job = NewJob(
        id=uuid.uuid4().hex,
        tenant=tenant,
        name="toy",
        request="{}",
        problem_key="p",
        request_key="r",
        is_deterministic=False,
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def submit(store: SqlStore, tenant: str = "a", **changes: object) -> Job:
    return store.submit(new_job(tenant, **changes))[0]


def claim(store: SqlStore, worker: str = "w", *, lease_s: float = 60.0) -> Job:
    job = store.claim(worker, lease_s=lease_s)
    assert job is not None
    return job


def count_since(store: SqlStore, key_id: str | None, *, seconds: float) -> int:
    """Jobs submitted with the key (or by tenant `a`, without one) in the last seconds, as quotas count them."""
    with store.database.transaction(is_writing=False) as cursor:
        return sql_store._count_submitted(cursor, "a", key_id=key_id, since=store.database.now() - seconds)


NEWS = ProgressUpdate(phase="search", incumbent_ns=100, lower_bound_ns=50, gap=0.5, source="x", plan="{plan 100}")
DONE = Outcome(
    state="succeeded", stopped_by="time", solution_status="feasible", plan="{best}", incumbent_ns=90, gap=0.4
)


def test_a_job_lives(store: SqlStore):
    """Tests that a job goes from queued to running to succeeded, with its plan, and tells its story in order."""
    job = submit(store)
    assert (job.state, job.attempt, job.version) == ("queued", 0, 1)
    running = claim(store)
    assert (running.id, running.state, running.attempt) == (job.id, "running", 1)
    assert store.claim("other", lease_s=60) is None
    store.report(running, NEWS)
    assert store.plan_text(job.id) == "{plan 100}"
    store.finish(running, DONE)
    done = store.get(job.id, tenant="a")
    assert done is not None
    assert (done.state, done.incumbent_ns, done.lower_bound_ns, done.gap) == ("succeeded", 90, 50, 0.4)
    assert store.plan_text(job.id) == "{best}"
    story = store.events(job.id, after=0)
    assert [event.kind for event in story] == ["queued", "started", "incumbent", "bound", "incumbent", "done"]
    assert [event.seq for event in story] == [1, 2, 3, 4, 5, 6]
    assert [event.seq for event in store.events(job.id, after=4)] == [5, 6]


def test_the_best_plan_stays(store: SqlStore):
    """Tests that a step with a worse plan, of a search that began anew, leaves the better one in place."""
    job = submit(store)
    running = claim(store)
    store.report(running, NEWS)
    store.report(running, replace(NEWS, incumbent_ns=200, gap=0.75, plan="{worse}"))
    kept = store.get(job.id)
    assert kept is not None
    assert (kept.incumbent_ns, kept.gap, store.plan_text(job.id)) == (100, 0.5, "{plan 100}")
    store.report(running, replace(NEWS, incumbent_ns=80, gap=0.375, plan="{better}"))
    assert store.plan_text(job.id) == "{better}"


def test_a_key_stands_for_one_job(store: SqlStore):
    """Tests that the same idempotency key and body give the first job, and that another body is refused."""
    first, is_new = store.submit(new_job(), idempotency_key="k", body_sha256="one")
    again, is_new_again = store.submit(new_job(), idempotency_key="k", body_sha256="one")
    assert (is_new, is_new_again, again.id) == (True, False, first.id)
    with pytest.raises(IdempotencyConflictError):
        store.submit(new_job(), idempotency_key="k", body_sha256="two")
    theirs, is_theirs_new = store.submit(new_job("b"), idempotency_key="k", body_sha256="two")
    assert is_theirs_new
    assert theirs.id != first.id
    assert store.recall("a", idempotency_key="k", body_sha256="one") == first
    assert store.recall("a", idempotency_key="unknown", body_sha256="one") is None


def while_frozen(store: SqlStore, act: Callable[[], object], meanwhile: Callable[[], object]) -> None:
    """Do something that stands still in the middle of its transaction while a thread does something else."""
    database = store.database  # type: ignore[attr-defined]
    other = threading.Thread(target=meanwhile)

    def freeze() -> float:
        del database.now
        other.start()
        other.join(1.0)  # it either got through by now, or waits for our transaction
        return float(database.now())

    database.now = freeze
    with contextlib.suppress(LeaseLostError):
        act()
    other.join()


def test_frozen_in_the_middle_of_the_last_word(store: SqlStore):
    """Tests that a worker that stands still between looking at its lease and ending its job shares it with nobody."""
    job = submit(store)
    frozen = claim(store, "frozen", lease_s=-1.0)

    def take_over() -> None:
        taken = store.claim("other", lease_s=60.0)
        if taken is not None:
            store.finish(taken, DONE)

    while_frozen(store, lambda: store.finish(frozen, DONE), take_over)
    assert [event.kind for event in store.events(job.id, after=0)].count("done") == 1


def test_two_stops_at_once(store: SqlStore):
    """Tests that two who stop a job at the same time end it once."""
    job = submit(store)
    held = claim(store)
    store.report(held, NEWS)
    store.stop(job.id, "a")
    store.release(held, spent_s=0, is_crash=False)  # the service stopped before its solver did
    while_frozen(store, lambda: store.stop(job.id, "a"), lambda: store.stop(job.id, "a"))
    assert [event.kind for event in store.events(job.id, after=0)].count("done") == 1


def test_a_frozen_worker_does_not_hold_the_queue(postgres: PostgresServer):
    """Tests that PostgreSQL takes its locks from a worker that stands still in the middle of a transaction."""
    database = PostgresDatabase(postgres.fresh_database(), frozen_s=1.0)
    store = SqlStore(database)
    submit(store)
    claim(store, "frozen", lease_s=-1.0)
    with pytest.raises(psycopg.Error), database.transaction() as cursor:  # noqa: PT012
        cursor.execute(f"SELECT id FROM jobs{database.row_lock}")
        claimed: list[Job | None] = []
        other = threading.Thread(target=lambda: claimed.append(store.claim("other", lease_s=60.0)))
        other.start()
        other.join(30.0)
        assert claimed
        assert claimed[0] is not None
        cursor.execute("SELECT 1")
    store.close_all()


def test_release_keeps_what_was_found(store: SqlStore):
    """Tests that a job given back waits again with its plan and the time spent."""
    job = submit(store)
    running = claim(store)
    store.report(running, NEWS)
    store.release(running, spent_s=2.5, is_crash=False)
    again = claim(store)
    assert (again.id, again.spent_s, again.crashes, again.incumbent_ns) == (job.id, 2.5, 0, 100)
    assert store.plan_text(job.id) == "{plan 100}"


def test_put_back_after_a_crash(store: SqlStore):
    """Tests that a service that starts anew queues whatever ran when it died."""
    submit(store)
    claim(store)
    assert store.put_back() == 0
    assert store.put_back(all_running=True) == 1
    again = claim(store)
    assert (again.attempt, again.crashes) == (2, 0)


def test_stop(store: SqlStore):
    """Tests that a waiting job is cancelled, one that has a plan succeeds, a running one is told, and twice is once."""
    waiting, interrupted, running = submit(store, priority=0), submit(store, priority=1), submit(store, priority=2)
    assert claim(store).id == running.id
    held = claim(store)
    assert held.id == interrupted.id
    store.report(held, NEWS)
    store.release(held, spent_s=0, is_crash=False)
    for job, state in ((waiting, "cancelled"), (interrupted, "succeeded"), (running, "running")):
        stopped = store.stop(job.id, "a")
        assert stopped is not None
        assert stopped.state == state
        assert store.stop(job.id, "a") == stopped
        assert stopped.is_stopped
    assert store.stop("0" * 32, "a") is None


def test_forget(store: SqlStore):
    """Tests that a forgotten job leaves nothing behind and its worker loses the lease."""
    job = store.submit(new_job(), idempotency_key="k", body_sha256="first")[0]
    running = claim(store)
    store.report(running, NEWS)
    assert store.forget(job.id, "a") is True
    assert store.forget(job.id, "a") is False
    assert store.plan_text(job.id) is None
    assert list(store.events(job.id, after=0)) == []
    with pytest.raises(LeaseLostError):
        store.report(running, NEWS)
    with pytest.raises(IdempotencyConflictError):
        store.submit(new_job(), idempotency_key="k", body_sha256="other")
    assert store.submit(new_job(), idempotency_key="k", body_sha256="first")[1] is True


def test_keys_outlive_their_jobs_for_a_while(store: SqlStore):
    """Tests that a used key is refused with another body after its job has gone, and is free when it is old."""
    job = store.submit(new_job(), idempotency_key="k", body_sha256="first")[0]
    kept = store.submit(new_job(is_pinned=True), idempotency_key="pinned", body_sha256="first")[0]
    for each in (job, kept):
        store.stop(each.id, "a")
    store.forget(job.id, "a")
    store.expire(older_than_s=1000)
    with pytest.raises(IdempotencyConflictError):
        store.remember("a", idempotency_key="k", body_sha256="other", job_id=kept.id)
    store.expire(older_than_s=-1000)
    assert store.recall("a", idempotency_key="k", body_sha256="other") is None
    assert store.recall("a", idempotency_key="pinned", body_sha256="first") is not None


def test_drawings_are_kept_with_their_job(store: SqlStore):
    """Tests that what was made of a plan is kept once, counts as the tenant's, and goes with the job."""
    job = submit(store)
    assert store.drawing(job.id, "view") is None
    for text in ("first", "second"):
        store.keep_drawing(job.id, "view", text=text)
    assert store.drawing(job.id, "view") == "first"
    with pytest.raises(QuotaError, match="too_many_bytes"):
        store.submit(new_job(), quota=replace(ROOM, stored_bytes=len("{}" * 2 + "first") - 1))
    store.submit(new_job(), quota=replace(ROOM, stored_bytes=len("{}" * 2 + "first")))
    store.forget(job.id, "a")
    store.keep_drawing(job.id, "view", text="too late")
    assert store.drawing(job.id, "view") is None


def test_retention_spares_the_pinned(store: SqlStore):
    """Tests that old finished jobs go, and that pinned, waiting and young ones stay."""
    jobs = [submit(store, is_pinned=number == 0) for number in range(2)]
    for _ in jobs:
        store.finish(claim(store), DONE)
    waiting = submit(store)
    assert store.expire(older_than_s=1000) == 0
    assert store.expire(older_than_s=-1000) == 1
    assert {job.id for job in recent(store, "a", limit=9)} == {jobs[0].id, waiting.id}


def test_answers(store: SqlStore):
    """Tests that a deterministic request is answered by its twin only, another by a plan proved well enough."""
    job = submit(store, request_key="twin", is_deterministic=True)
    store.finish(claim(store), replace(DONE, stopped_by="rounds"))
    twin, other = new_job(request_key="twin", is_deterministic=True), new_job(request_key="other")
    found = store.find_answer(twin, gap=0.0)
    assert found is not None
    assert found.id == job.id
    assert store.find_answer(replace(twin, tenant="b"), gap=0.0) is None
    assert store.find_answer(replace(twin, request_key="other"), gap=0.9) is None
    assert store.find_answer(other, gap=0.3) is None
    assert store.find_answer(other, gap=0.4) is not None
    assert store.find_plan_like("a", "p") == "{best}"
    assert store.find_plan_like("b", "p") is None


@pytest.mark.parametrize("kept", [{"project": "moon"}, {"tags": " a b "}, {"is_pinned": True}])
def test_answers_are_kept_as_asked(store: SqlStore, kept: dict[str, object]):
    """Tests that a plan answers a request for a project, tags or a pin only if it has them."""
    submit(store, request_key="twin", is_deterministic=True)
    store.finish(claim(store), replace(DONE, stopped_by="rounds"))
    asked = new_job(request_key="twin", is_deterministic=True, **kept)
    assert store.find_answer(asked, gap=0.0) is None
    job = submit(store, request_key="twin", is_deterministic=True, **kept)
    store.finish(claim(store), replace(DONE, stopped_by="rounds"))
    found = store.find_answer(asked, gap=0.0)
    assert found is not None
    assert found.id == job.id


def test_counts(store: SqlStore):
    """Tests that what limits and metrics need is counted."""
    submit(store, key_id="k"), submit(store), submit(store, "b")
    claim(store)
    assert store.count_states() == {"queued": 2, "running": 1}
    assert count_since(store, "k", seconds=60) == 1
    assert count_since(store, None, seconds=60) == 2
    assert count_since(store, None, seconds=-60) == 0
    ping(store)


def test_many_workers_claim_each_job_once(store: SqlStore):
    """Tests that threads that claim at the same time never get the same job, and leave none."""
    jobs = {submit(store, tenant).id for tenant in "abc" for _ in range(10)}
    claimed: list[str] = []

    def work() -> None:
        while (job := store.claim("w", lease_s=60)) is not None:
            claimed.append(job.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(jobs)
    assert set(claimed) == jobs


def test_versions_grow(store: SqlStore):
    """Tests that every change of a job changes its version."""
    job = submit(store)
    seen = [store.versions([job.id])[job.id]]
    running = claim(store)
    seen.append(store.versions([job.id])[job.id])
    store.report(running, NEWS)
    seen.append(store.versions([job.id])[job.id])
    store.finish(running, DONE)
    seen.append(store.versions([job.id])[job.id])
    assert seen == sorted(set(seen))
    assert store.versions([]) == {}


ROOM = Quota(unfinished_jobs=3, hourly_jobs=100, stored_bytes=1000)


def test_caps_hold_for_all_at_once(store: SqlStore):
    """Tests that of forty who submit at the same time as many are stored as may be, and the others are refused."""
    stored, refused = [], []

    def work() -> None:
        try:
            stored.append(store.submit(new_job(), quota=ROOM)[0].id)
        except QuotaError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(stored), refused) == (3, ["too_many_jobs"] * 37)
    assert store.count_states() == {"queued": 3}


def test_every_quota_holds(store: SqlStore):
    """Tests that jobs of an hour and bytes are counted, that a refused key is free, and a known one is answered."""
    key = {"idempotency_key": "k", "body_sha256": "one"}
    with pytest.raises(QuotaError, match="too_many_bytes"):
        store.submit(new_job(request="x" * 1001), quota=ROOM, **key)
    first = store.submit(new_job(request="x" * 900), quota=ROOM, **key)[0]
    with pytest.raises(QuotaError, match="too_many_bytes"):
        store.submit(new_job(request="x" * 101), quota=ROOM)
    store.stop(first.id, "a")
    with pytest.raises(QuotaError, match="hourly_limit"):
        store.submit(new_job(), quota=replace(ROOM, hourly_jobs=1))
    assert store.submit(new_job(), quota=replace(ROOM, hourly_jobs=1), **key) == (store.get(first.id), False)
    assert store.request_text(first.id) == "x" * 900


@pytest.mark.parametrize("key_id", [None, "k"])
def test_deleting_gives_no_place_of_the_hour_back(store: SqlStore, key_id: str | None):
    """Tests that a job that was deleted, or expired, counts for its hour, by key or tenant, and its bytes do not."""
    hour = replace(ROOM, hourly_jobs=2)
    for _ in range(2):
        job = store.submit(new_job(request="x" * 900, key_id=key_id), quota=hour)[0]
        store.stop(job.id, "a")
        assert store.forget(job.id, "a")
    with pytest.raises(QuotaError, match="hourly_limit"):
        store.submit(new_job(key_id=key_id), quota=hour)
    assert count_since(store, key_id, seconds=60) == 2
    store.submit(new_job("b", key_id="other"), quota=hour)
    last = store.submit(new_job(key_id=key_id), quota=replace(hour, hourly_jobs=3))[0]
    store.stop(last.id, "a")
    assert store.expire(older_than_s=-1000) == 1
    assert count_since(store, key_id, seconds=60) == 3


def test_what_a_solver_claims_is_kept(store: SqlStore):
    """Tests that a claim below the plan stands with its job."""
    job = submit(store)
    store.finish(claim(store), replace(DONE, solver_bound_ns=70))
    done = store.get(job.id)
    assert done is not None
    assert (done.incumbent_ns, done.solver_bound_ns) == (90, 70)


def test_a_key_that_the_cache_answered_is_used_up(store: SqlStore):
    """Tests that a key under which a stored answer was given is refused with another body."""
    job = submit(store)
    for _ in range(2):
        store.remember("a", idempotency_key="k", body_sha256="one", job_id=job.id)
    assert store.recall("a", idempotency_key="k", body_sha256="one") == job
    with pytest.raises(IdempotencyConflictError):
        store.submit(new_job(), idempotency_key="k", body_sha256="two")
    with pytest.raises(IdempotencyConflictError):
        store.remember("a", idempotency_key="k", body_sha256="two", job_id=job.id)


def test_a_key_stands_for_the_first_job_though_the_cache_has_another(store: SqlStore):
    """Tests that what another instance stored under the key meanwhile is told, in place of a stored answer."""
    first, _ = store.submit(new_job(), idempotency_key="k", body_sha256="one")
    cached = submit(store)
    assert store.remember("a", idempotency_key="k", body_sha256="one", job_id=cached.id) == first
    assert store.remember("a", idempotency_key="new", body_sha256="one", job_id=cached.id) is None


def test_expiry_takes_many_batches(store: SqlStore):
    """Tests that more jobs than one batch holds expire, with everything that belongs to them."""
    gone = [submit(store).id for _ in range(2 * BATCH + 1)]
    for job_id in gone:
        store.stop(job_id, "a")
    assert store.expire(older_than_s=-1000) == len(gone)
    with store.database.transaction() as cursor:  # type: ignore[attr-defined]
        for table in ("jobs", "requests", "events"):
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            assert cursor.fetchone()[0] == 0


def test_keys_expire_a_few_at_a_time(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """Tests that keys of jobs that are gone expire whatever their number, and those of jobs that are kept do not."""
    monkeypatch.setattr(sql_store, "KEYS", 3)
    for number in range(7):
        job, _ = store.submit(new_job(), idempotency_key=f"gone {number}", body_sha256="x")
        store.stop(job.id, "a")
    store.submit(new_job(), idempotency_key="kept", body_sha256="x")
    store.expire(older_than_s=-1000)
    with store.database.transaction() as cursor:  # type: ignore[attr-defined]
        cursor.execute("SELECT idempotency_key FROM idempotency")
        assert cursor.fetchall() == [("kept",)]


def test_expiry_stops_soon(store: SqlStore):
    """Tests that a service that ends need not wait for thousands of jobs to expire, and the next one goes on."""
    for _ in range(2 * BATCH + 1):
        store.stop(submit(store).id, "a")
    assert store.expire(older_than_s=-1000, should_stop=lambda: True) == BATCH
    assert store.expire(older_than_s=-1000) == BATCH + 1


def test_large_jobs_expire_a_few_at_a_time(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """Tests that a transaction of expiry removes no more bytes than it may, and a job that is larger alone."""
    monkeypatch.setattr("api.jobs.stores.sql_store.BATCH_BYTES", 1000)
    for size in (400, 500, 300, 5000, 10):
        store.stop(submit(store, request="x" * size).id, "a")
    taken: list[int] = []
    forget = sql_store._forget_rest

    def watch(cursor: sql_store.Cursor, gone: Sequence[sql_store.Row], *, now: float) -> None:
        taken.append(len(gone))
        forget(cursor, gone, now=now)

    monkeypatch.setattr(sql_store, "_forget_rest", watch)
    assert store.expire(older_than_s=-1000) == 5
    assert max(taken) <= 3
    assert len(taken) >= 3


def test_transactions_of_expiry_shrink_where_they_take_long(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """Tests that a database that removes two megabytes in a second is given one job at a time, soon."""
    for _ in range(2 * BATCH):
        store.stop(submit(store, request="x" * 2**20).id, "a")
    taken: list[int] = []
    some, database = store._expire_some, store.database  # type: ignore[attr-defined]

    def slowly(*arguments: object, **named: object) -> int:
        count: int = some(*arguments, **named)
        taken.extend([count] if count else [])
        clock.append(clock[-1] + 0.5 * count)
        return count

    clock = [0.0]
    monkeypatch.setattr("api.jobs.stores.postgres.HOUSEKEEPING_S", 60.0)  # a busy machine gives nothing up
    monkeypatch.setattr(store, "_expire_some", slowly)
    monkeypatch.setattr(database, "let_others_in", lambda _: None)
    tell_time(monkeypatch, "api.jobs.stores.sql_store", monotonic=lambda: clock[-1])
    assert store.expire(older_than_s=-1000) == 2 * BATCH
    assert taken[0] > 10
    assert set(taken[1:]) == {1}


def test_incumbents_can_be_looked_back_at(store: SqlStore):
    """Tests that the latest incumbents are kept under the numbers of their events, and go with the job."""
    submit(store)
    job = claim(store)
    for objective in range(100 + KEPT, 99, -1):
        store.report(job, replace(NEWS, incumbent_ns=objective, plan=f"{{plan {objective}}}"))
    told = {event.seq: event for event in store.events(job.id, after=0) if event.kind == "incumbent"}
    kept = store.incumbents(job.id)
    assert list(kept) == sorted(told)[-KEPT:]
    for seq in kept:
        objective = json.loads(told[seq].data)["incumbent_ns"]
        assert store.incumbent_text(job.id, seq) == f"{{plan {objective}}}"
    assert store.incumbent_text(job.id, min(told)) is None
    assert store.forget(job.id, "a")
    assert list(store.incumbents(job.id)) == []
