"""Workers in processes of their own on PostgreSQL: tickets, crashes, a database that restarts."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from api.doctor import make_toy_problem
from api.jobs.job_metrics import JobMetrics
from api.jobs.stores.postgres import QUEUE, TASK, PostgresDatabase, PostgresEngine, prepare
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import persistently
from api.jobs.workers import postgres_worker
from api.jobs.workers.postgres_worker import _TicketWorker, work
from api.jobs.workers.solver_handle import ProcessLimits
from api.jobs.workers.worker_registry import WorkerRegistry
from api.settings import Settings
from planner.progress import Limits
from tests.api.forked_solvers import fork_command, fork_program, forker
from tests.api.jobs.stores.looks import ping
from tests.api.jobs.workers.test_pool import PATIENCE, assert_verified, large_problem, submit, wait
from tests.api.postgres import PostgresServer
from tests.forking import ForkedProcess
from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[4]


class Workers:
    """Worker processes of one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.processes: list[ForkedProcess | subprocess.Popen[bytes]] = []

    def start(self, *, is_forked: bool = True) -> "ForkedProcess | subprocess.Popen[bytes]":
        """A worker, in a fork unless its start is what is tested."""
        words = ("worker", "--database-url", self.url)
        if is_forked:
            self.processes.append(fork_command(*words))
        else:
            command = [sys.executable, "-m", "api", *words]
            self.processes.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            assert process.wait(60) in (0, -signal.SIGKILL)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.fresh_database()


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    made = SqlStore(PostgresDatabase(url))
    yield made
    made.close_all()


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    database = PostgresDatabase(url)
    made = PostgresEngine(database)
    made.start()
    yield made
    database.close_all()


@pytest.fixture
def workers(url: str) -> Iterator[Workers]:
    made = Workers(url)
    yield made
    made.close()


def test_a_worker_solves(store: SqlStore, engine: PostgresEngine, workers: Workers):
    """Tests that jobs announced before and after a worker starts are solved, and that it ends at SIGTERM."""
    limits = Limits(time_limit_s=60, max_rounds=1)
    before = submit(store, make_toy_problem(), limits)
    engine.announce()
    worker = workers.start(is_forked=False)
    assert wait(store, before, lambda job: job.is_finished).state == "succeeded"
    after = submit(store, make_toy_problem(), Limits(time_limit_s=60, max_rounds=1, seed=1))
    engine.announce()
    done = wait(store, after, lambda job: job.is_finished)
    assert_verified(store, done, make_toy_problem())
    worker.terminate()
    assert worker.wait(40) == 0


def test_a_job_without_a_ticket_is_found(store: SqlStore, engine: PostgresEngine, workers: Workers):
    """Tests that a job whose service died between storing and announcing it is solved all the same."""
    lost = submit(store, make_toy_problem(), Limits(time_limit_s=60, max_rounds=1))
    workers.start()
    assert wait(store, lost, lambda job: job.is_finished).state == "succeeded"


def test_a_worker_that_ends_gives_its_job_to_another(store: SqlStore, engine: PostgresEngine, workers: Workers):
    """Tests that SIGTERM on the worker that solves loses nothing, and another worker goes on from the plan found."""
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    engine.announce()
    first = workers.start()
    wait(store, job, lambda job: job.incumbent_ns)
    first.terminate()
    assert first.wait(60) == 0
    given_back = store.get(job.id)
    assert given_back is not None
    assert (given_back.state, given_back.crashes) == ("queued", 0)
    workers.start()
    wait(store, job, lambda job: job.state == "running")
    store.stop(job.id, "a")
    done = wait(store, job, lambda job: job.is_finished)
    assert done.state == "succeeded"
    assert (done.incumbent_ns or 0) <= (given_back.incumbent_ns or 0)
    assert_verified(store, done, large_problem())


def test_the_database_restarts(postgres: PostgresServer, store: SqlStore, engine: PostgresEngine, workers: Workers):
    """Tests that a database that crashes and comes back while a job is solved costs neither the job nor its plan."""
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    engine.announce()
    workers.start()
    found = wait(store, job, lambda job: job.incumbent_ns)
    postgres.stop(signal.SIGQUIT)
    time.sleep(1.0)
    postgres.start()
    until = time.monotonic() + 30
    while True:
        try:
            ping(store)
            break
        except Exception:
            assert time.monotonic() < until
            time.sleep(0.2)
    store.stop(job.id, "a")
    done = wait(store, job, lambda job: job.is_finished, seconds=200)
    assert done.state == "succeeded"
    assert (done.incumbent_ns or 0) <= (found.incumbent_ns or 0)
    assert_verified(store, done, large_problem())


def test_a_database_that_is_away_holds_up_no_submission(postgres: PostgresServer, engine: PostgresEngine, url: str):
    """Tests that a ticket without a server is given up within seconds, and that the next one finds the server again."""
    postgres.stop(signal.SIGQUIT)
    try:
        begin = time.monotonic()
        engine.announce()
        assert time.monotonic() - begin < 30
    finally:
        postgres.start()
    engine.announce()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone() == (1,)


def test_the_database_goes_away_while_a_worker_starts(postgres: PostgresServer, store: SqlStore, url: str):
    """Tests that a worker that finds no database after it was there waits for it, solves, and ends in good order."""
    job = submit(store, make_toy_problem(), Limits(time_limit_s=60, max_rounds=1))
    postgres.stop(signal.SIGQUIT)
    worker = fork_program("tests.api.jobs.hasty_worker", url)
    try:
        time.sleep(1.0)
        assert worker.poll() is None
        postgres.start()
        persistently(lambda: ping(store), seconds=60.0)
        wait(store, job, lambda job: job.is_finished)
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()


def test_a_killed_worker_takes_its_solver_with_it(store: SqlStore, engine: PostgresEngine, workers: Workers):
    """Tests that no solver outlives a worker that was killed."""
    job = submit(store, large_problem(), Limits(time_limit_s=600, patience_s=600, threads=1))
    engine.announce()
    worker = workers.start()
    wait(store, job, lambda job: job.incumbent_ns)
    (solver,) = forker().forks_of(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    until = time.monotonic() + 20
    while Path(f"/proc/{solver}/status").exists() and not is_zombie(solver):
        assert time.monotonic() < until, "the solver goes on without its master"
        time.sleep(0.1)


def test_a_busy_worker_is_heard(store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that more solvers than a loop has threads of its own work at once, and that the heart beats meanwhile."""
    monkeypatch.setattr(postgres_worker, "BEAT_S", 0.05)
    num_workers = 40
    prepare(url)
    worker = _TicketWorker(url, num_workers=num_workers, limits=ProcessLimits(), patience=PATIENCE)
    together, heard = threading.Barrier(num_workers + 2), threading.Event()

    def solve_next() -> None:
        together.wait(60)
        heard.wait(60)

    def last_beat() -> float:
        row = store.database.read_first("SELECT MAX(seen_at) FROM workers")
        return float(row[0])

    async def put_tickets_up() -> None:
        app = worker._make_app()
        async with app.open_async():
            for _ in range(num_workers + 1):
                await app.configure_task(TASK, queue=QUEUE).defer_async()

    monkeypatch.setattr(worker, "solve_next", solve_next)
    asyncio.run(put_tickets_up())
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        together.wait(60)
        begin = last_beat()
        until = time.monotonic() + 60
        while last_beat() == begin:
            assert time.monotonic() < until, "no beat while all solvers work"
            time.sleep(0.05)
    finally:
        heard.set()
        worker.drain()
        thread.join(60)
        worker.close()
    assert WorkerRegistry(store.database).strength().num_workers == 0


class Idler:
    """A worker without work: `run` is what the test does meanwhile."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.metrics, self._act = JobMetrics(), act

    async def run(self) -> None:
        await asyncio.to_thread(self._act)

    def close(self) -> None:
        """Nothing is open."""


def test_the_port_of_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Tests that metrics and life are told, that who says nothing is hung up on, and that a taken port is named."""
    port, seen = free_port(), {}
    address, settings = ("127.0.0.1", port), Settings(data=tmp_path)
    monkeypatch.setattr(postgres_worker, "_SILENT_S", 0.2)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def look() -> None:
        with socket.create_connection(address, timeout=30) as silent:
            seen["silent"] = silent.recv(1)
        for path in ("/metrics", "/livez"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                seen[path] = answer.status, b"pipeplan_jobs_ended" in answer.read()
        with pytest.raises(ValueError, match=f"--metrics-port {port}: .* in use; give one that is free"):
            work(settings, metrics_address=address)

    monkeypatch.setattr(postgres_worker, "_make_worker", lambda _: Idler(look))
    work(settings, metrics_address=address)
    assert seen == {"silent": b"", "/metrics": (200, True), "/livez": (200, True)}
    assert "a look at the metrics failed" in caplog.text


def is_zombie(pid: int) -> bool:
    """Whether only its entry is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
