"""Workers with real solver processes: jobs are solved, stopped, killed and given back, and no plan gets lost."""

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.doctor import make_toy_problem
from api.jobs.job import Job, NewJob
from api.jobs.request import PlanRequest
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.pool import Pool
from api.jobs.workers.runner import Patience
from api.jobs.workers.solver_handle import ProcessLimits
from planner.document import parse_plan, render_plan
from planner.planning import make_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.load import load_workload

PATIENCE = Patience(lease_s=20.0, look_s=0.1, report_s=0.1, drain_s=20.0, max_crashes=3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    made = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    yield made
    made.close_all()


@pytest.fixture
def make_pool(store: SqlStore) -> Iterator[Callable[..., Pool]]:
    """Pools of one worker that end with the test."""
    made: list[Pool] = []

    def make(*, patience: Patience = PATIENCE, **limits: int) -> Pool:
        pool = Pool(store, num_workers=1, limits=ProcessLimits(**limits), patience=patience)
        made.append(pool)
        pool.start()
        return pool

    yield make
    for pool in made:
        pool.close()


def large_problem() -> Problem:
    """One whose search goes on for as long as it may."""
    workload = load_workload("demo:vgg16-ethernet")
    assert workload.cluster is not None
    return Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=32)


def submit(store: SqlStore, problem: Problem, limits: Limits) -> Job:
    request = PlanRequest(problem=problem, limits=limits)
    job = NewJob(
        id=uuid.uuid4().hex,
        tenant="a",
        name=problem.profile.name,
        request=request.render(),
        problem_key=request.problem_key,
        request_key=request.request_key,
        is_deterministic=request.is_deterministic,
    )
    return store.submit(job)[0]


def wait(store: SqlStore, job: Job, is_there: Callable[[Job], object], *, seconds: float = 120.0) -> Job:
    """The job, as soon as it is as wished."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        present = store.get(job.id)
        assert present is not None
        if is_there(present):
            return present
        time.sleep(0.05)
    pytest.fail(f"not in {seconds} s: {store.get(job.id)}")


def assert_verified(store: SqlStore, job: Job, problem: Problem) -> None:
    """The stored plan passes the verifier here."""
    text = store.plan_text(job.id)
    assert text is not None
    plan = parse_plan(text)
    verdict = verify(problem, plan)
    assert verdict.passed, verdict.violations
    assert verdict.timeline is not None
    assert verdict.timeline.makespan_ns == job.incumbent_ns
    assert plan.evidence is not None
    assert plan.evidence.verdict["passed"]


def test_a_plan_is_the_command_lines(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that with a deterministic limit the stored plan equals what make_plan gives here, byte for byte."""
    make_pool()
    problem, limits = make_toy_problem(), Limits(time_limit_s=60, seed=3, max_rounds=2)
    job = wait(store, submit(store, problem, limits), lambda job: job.is_finished)
    assert job.state == "succeeded", job
    assert store.plan_text(job.id) == render_plan(make_plan(problem, limits=limits))
    assert_verified(store, job, problem)


def test_stop_keeps_the_best_plan(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that a stopped search ends long before its limit with a verified plan."""
    make_pool()
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    wait(store, job, lambda job: job.incumbent_ns)
    store.stop(job.id, "a")
    done = wait(store, job, lambda job: job.is_finished)
    assert (done.state, done.stopped_by) == ("succeeded", "user")
    assert_verified(store, done, large_problem())


def test_a_killed_solver_costs_no_plan(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that after kill -9 of the solver the job goes on from its incumbent and never ends worse."""
    pool = make_pool()
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    found = wait(store, job, lambda job: job.plan_sha256)
    for attempt in range(1, PATIENCE.max_crashes + 1):
        wait(store, job, lambda job, n=attempt: job.state == "running" and job.attempt == n)
        wait(store, job, lambda _: pool.children[0].pid)
        time.sleep(0.3)
        os.kill(pool.children[0].pid or 0, signal.SIGKILL)
    done = wait(store, job, lambda job: job.is_finished)
    assert (done.state, done.crashes) == ("succeeded", PATIENCE.max_crashes)
    assert (done.incumbent_ns or 0) <= (found.incumbent_ns or 0)
    assert_verified(store, done, large_problem())
    assert [event.kind for event in store.events(job.id, after=0)].count("done") == 1


def test_a_solver_that_does_not_listen(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that a solver that neither ends in time nor stops when asked is killed, and its plan written up."""
    pool = make_pool(patience=replace(PATIENCE, overtime_s=0.1, stop_s=0.5))
    job = submit(store, large_problem(), Limits(time_limit_s=2, patience_s=600, threads=1))
    wait(store, job, lambda job: job.plan_sha256)
    os.kill(pool.children[0].pid or 0, signal.SIGSTOP)
    done = wait(store, job, lambda job: job.is_finished)
    assert (done.state, done.stopped_by, done.attempt) == ("succeeded", "time", 1)
    assert_verified(store, done, large_problem())


def test_draining_gives_back(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that a pool that drains gives its job back with the plan found, and that another pool finishes it."""
    pool = make_pool()
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    wait(store, job, lambda job: job.incumbent_ns)
    pool.close()
    given_back = store.get(job.id)
    assert given_back is not None
    assert (given_back.state, given_back.crashes) == ("queued", 0)
    assert given_back.spent_s > 0
    make_pool()
    wait(store, job, lambda job: job.state == "running")
    store.stop(job.id, "a")
    done = wait(store, job, lambda job: job.is_finished)
    assert done.state == "succeeded"
    assert (done.incumbent_ns or 0) <= (given_back.incumbent_ns or 0)
    assert_verified(store, done, large_problem())


def test_too_little_memory_is_said(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that a solver above its memory cap is ended, and that the job says so instead of going on for ever."""
    make_pool(memory_bytes=60 * 2**20)
    job = submit(store, make_toy_problem(), Limits(time_limit_s=5))
    done = wait(store, job, lambda job: job.is_finished)
    assert done.state == "failed"
    assert json.loads(done.error or "{}")["code"] in ("out_of_memory", "solver_died")


def test_infeasible_is_an_answer(store: SqlStore, make_pool: Callable[..., Pool]):
    """Tests that a problem that no plan can satisfy fails with the limit that binds."""
    from tests.api.worlds import make_problem, make_workload

    make_pool()
    job = submit(store, make_problem(make_workload(memory_bytes=2**20)), Limits(time_limit_s=5))
    done = wait(store, job, lambda job: job.is_finished)
    assert (done.state, done.solution_status) == ("failed", "infeasible")
    assert json.loads(done.error or "{}")["code"] == "infeasible"
