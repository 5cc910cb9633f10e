"""One job on several workers: islands are claimed, exchange what they find, and may be lost at any time."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.jobs.job import Event, Island, Job, LeaseLostError
from api.jobs.request import PlanRequest
from api.jobs.stores.islands import MAX_CRASHES
from api.jobs.stores.postgres import PostgresDatabase, PostgresEngine
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.pool import Pool
from api.jobs.workers.solver_handle import ProcessLimits
from planner.document import parse_plan
from planner.progress import Limits
from tests.api.forked_solvers import fork_program
from tests.api.jobs.stores.test_store import DONE, NEWS, claim, new_job
from tests.api.jobs.workers.test_pool import PATIENCE, assert_verified, large_problem, wait
from tests.api.postgres import PostgresServer
from tests.long_runs import long_only

LIMITS = Limits(time_limit_s=600, patience_s=600, threads=1)


def submit(store: SqlStore, **changes: object) -> Job:
    return store.submit(new_job(**changes))[0]


def take(store: SqlStore, *, lease_s: float = 60.0) -> Island:
    island = store.islands.claim("w", lease_s=lease_s)
    assert island is not None
    return island


def present(store: SqlStore, job: Job) -> Job:
    found = store.get(job.id)
    assert found is not None
    return found


def test_a_lost_island_is_claimed_anew(store: SqlStore):
    """Tests that whoever fell silent loses the island to the next, and that nothing it says is heard any more."""
    submit(store, islands=2)
    claim(store)
    lost = take(store, lease_s=-1.0)
    again = take(store)
    assert (again.number, again.attempt) == (lost.number, 2)
    for speak in (
        lambda: store.report(lost.job, NEWS, island=lost),
        lambda: store.islands.extend(lost, lease_s=9),
        lambda: store.islands.is_stopped(lost),
        lambda: store.islands.release(lost, is_crash=False),
        lambda: store.islands.finish(lost, plan=None, gap=None),
    ):
        with pytest.raises(LeaseLostError):
            speak()
    store.report(again.job, NEWS, island=again)


def test_an_island_whose_solver_dies_is_given_up(store: SqlStore):
    """Tests that an island is taken up anew after a crash, but not for ever."""
    submit(store, islands=2)
    claim(store)
    for number in range(MAX_CRASHES):
        island = take(store)
        assert island.crashes == number
        store.islands.release(island, is_crash=True)
    assert store.islands.claim("w", lease_s=60) is None


def test_the_end_of_the_job(store: SqlStore):
    """Tests that islands are told to end, leave their plans, and go with the job."""
    job = submit(store, islands=4)
    leader = claim(store)
    ended, running = take(store), take(store)
    store.islands.finish(ended, plan="{plan}", gap=0.25)
    assert store.islands.is_settled(job.id, gap=0.25)
    assert not store.islands.is_settled(job.id, gap=0.2)
    assert not store.islands.is_stopped(running)
    store.islands.close(job.id)
    assert store.islands.is_stopped(running)
    assert store.islands.claim("w", lease_s=60) is None
    assert store.islands.plans(job.id) == ["{plan}"]
    store.finish(leader, DONE)
    with pytest.raises(LeaseLostError):
        store.report(running.job, replace(NEWS, incumbent_ns=1), island=running)
    assert present(store, job).incumbent_ns == DONE.incumbent_ns
    assert (store.islands.plans(job.id), store.islands.count_running()) == ([], 0)


def test_islands_go_on_without_who_holds_the_job(store: SqlStore):
    """Tests that islands report while the job waits for another worker, who may have them end and others begin."""
    job = submit(store, islands=2)
    leader = claim(store, lease_s=-1.0)
    island = take(store)
    store.islands.close(job.id)
    assert store.put_back() == 1
    store.report(island.job, NEWS, island=island)
    assert (present(store, job).state, present(store, job).incumbent_ns) == ("queued", 100)
    again = claim(store)
    assert again.attempt == leader.attempt + 1
    assert not store.islands.is_stopped(island)


def test_a_deleted_job_has_no_islands(store: SqlStore):
    """Tests that whoever works on an island of a job that is deleted hears of it."""
    job = submit(store, islands=2)
    claim(store)
    island = take(store)
    assert store.forget(job.id, "a")
    with pytest.raises(LeaseLostError):
        store.islands.is_stopped(island)


# ---------------------------------------------------------------- real workers


def ask(store: SqlStore, limits: Limits, *, islands: int) -> Job:
    request = PlanRequest(problem=large_problem(), limits=limits)
    keys = {"problem_key": request.problem_key, "request_key": request.request_key}
    return submit(store, name="large", request=request.render(), islands=islands, **keys)


def story(store: SqlStore, job: Job, kind: str) -> list[Event]:
    return [event for event in store.events(job.id, after=0) if event.kind == kind]


def holders(store: SqlStore, job: Job) -> dict[int, int]:
    """Process ids of the workers of islands at work, by their numbers."""
    with store.database.transaction(is_writing=False) as cursor:
        cursor.execute("SELECT number, worker FROM islands WHERE job_id = ? AND state = 'running'", (job.id,))
        return {number: int(worker.split(":")[1]) for number, worker in cursor.fetchall()}


@pytest.fixture
def one_file(tmp_path: Path) -> Iterator[SqlStore]:
    made = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    yield made
    made.close_all()


@pytest.fixture
def pool(one_file: SqlStore) -> Iterator[Pool]:
    """Two workers."""
    made = Pool(one_file, num_workers=2, limits=ProcessLimits(num_threads=1), patience=PATIENCE)
    made.start()
    yield made
    made.close()


@pytest.mark.slow
def test_two_islands_make_one_answer(one_file: SqlStore, pool: Pool):
    """Tests that a job with two islands ends with one verified plan, no worse than anything that either told of."""
    job = ask(one_file, replace(LIMITS, time_limit_s=5.0), islands=2)
    done = wait(one_file, job, lambda job: job.is_finished)
    assert done.state == "succeeded", done
    assert_verified(one_file, done, large_problem())
    told = [json.loads(event.data) for event in story(one_file, job, "incumbent")]
    assert done.incumbent_ns == min(data["incumbent_ns"] for data in told)
    assert [json.loads(event.data)["island"] for event in story(one_file, job, "log")] == [1]
    assert len(story(one_file, job, "done")) == 1
    plan = parse_plan(one_file.plan_text(job.id) or "")
    assert plan.evidence is not None
    assert (plan.evidence.stopped_by, plan.evidence.lower_bound_ns) == ("time", done.lower_bound_ns)
    assert b'pipeplan_islands_total{end="ended"} 1.0' in pool.metrics.render()


@pytest.mark.slow
def test_an_island_gives_way(one_file: SqlStore, pool: Pool):
    """Tests that a job that waits gets the worker of an island, which is taken up again afterwards."""
    job = ask(one_file, LIMITS, islands=2)
    wait(one_file, job, lambda _: one_file.islands.count_running())
    small = ask(one_file, replace(LIMITS, time_limit_s=1.0), islands=1)
    assert wait(one_file, small, lambda job: job.is_finished).state == "succeeded"
    assert present(one_file, job).state == "running"
    wait(one_file, job, lambda _: one_file.islands.count_running())
    one_file.stop(job.id, "a")
    done = wait(one_file, job, lambda job: job.is_finished)
    assert (done.state, done.stopped_by, done.attempt) == ("succeeded", "user", 1)
    assert_verified(one_file, done, large_problem())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["island", pytest.param("holder", marks=long_only)])
def test_a_worker_killed_in_the_middle(postgres: PostgresServer, who: str):
    """Tests that kill -9 of a worker that holds an island, or the job itself, costs nothing but its work."""
    url = postgres.fresh_database()
    store, engine = SqlStore(PostgresDatabase(url)), PostgresEngine(url)
    engine.start()
    workers = [fork_program("tests.api.jobs.hasty_worker", url) for _ in range(2)]
    try:
        job = ask(store, LIMITS, islands=2)
        for _ in range(2):
            engine.announce()
        wait(store, job, lambda job: holders(store, job) and job.incumbent_ns)
        holder = int((present(store, job).worker or "").split(":")[1])
        victim = holders(store, job)[1] if who == "island" else holder
        other = holder if who == "island" else holders(store, job)[1]
        assert {victim, other} == {worker.pid for worker in workers}
        found = present(store, job)
        os.kill(victim, signal.SIGKILL)
        if who == "island":
            wait(store, job, lambda job: not store.islands.count_running())
        else:
            wait(store, job, lambda job: job.attempt == 2)
        assert not present(store, job).is_finished
        workers.append(fork_program("tests.api.jobs.hasty_worker", url))
        wait(store, job, lambda job: job.state == "running" and store.islands.count_running())
        store.stop(job.id, "a")
        done = wait(store, job, lambda job: job.is_finished)
        assert (done.state, done.stopped_by) == ("succeeded", "user")
        assert done.attempt == (1 if who == "island" else 2)
        assert (done.incumbent_ns or 0) <= (found.incumbent_ns or 0)
        assert_verified(store, done, large_problem())
        assert len(story(store, job, "done")) == 1
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
                worker.wait(60)
        engine.close()
        store.close_all()
