"""Kills: solvers, workers, the service, the database; a full disk; a worker that freezes and thaws.

After all of it no job is lost, none is finished twice, and every plan that is there passes the verifier here. `make
test` does a few kills of each kind; `make test-crash` a hundred.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.jobs.postgres import PostgresDatabase
from api.jobs.runner import JobRunner, Patience
from api.jobs.sql_store import SqlStore
from api.jobs.sqlite import SqliteDatabase
from api.service.serving import free_port
from planner.document import parse_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.api.jobs.test_pool import large_problem, submit
from tests.api.jobs.test_postgres_worker import children_of
from tests.api.postgres import PostgresServer

KILLS = int(os.environ.get("PIPEPLAN_KILLS", "4"))
"""Kills of each test."""

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 240.0


@dataclass
class Site:
    """Processes of one service, by role; each can be killed and is started again."""

    folder: Path
    url: str | None = None
    num_workers: int = 1
    port: int = field(default_factory=free_port)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", num_tries=10)

    def start(self, role: str) -> None:
        """`api`, or `worker-N`."""
        more = [] if self.url is None else ["--database-url", self.url]
        verb = ["serve", "--port", str(self.port)] if role == "api" else ["worker"]
        command = [sys.executable, "-m", "api.cli", *verb, "--data", str(self.folder / "data"), *more]
        log = (self.folder / "log").open("ab")
        self.processes[role] = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=log)
        log.close()

    def start_all(self) -> None:
        for role in ("api", *(f"worker-{number}" for number in range(self.num_workers if self.url else 0))):
            self.start(role)
        self.client.capabilities()

    def kill(self, role: str) -> None:
        """SIGKILL, and at once a new one."""
        self.processes[role].kill()
        self.processes[role].wait()
        self.start(role)

    def kill_a_solver(self, chance: random.Random) -> None:
        """SIGKILL to one of the processes below ours."""
        solvers = [pid for process in self.processes.values() for pid in children_of(process.pid)]
        if solvers:
            with_pid = chance.choice(sorted(solvers))
            try:
                os.kill(with_pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            assert process.wait(90) == 0


def wait_all(client: Client, ids: list[str], *, seconds: float) -> None:
    """Until every job is finished; whoever asks while the service is away asks again."""
    until = time.monotonic() + seconds
    for job_id in ids:
        while True:
            try:
                if client.job(job_id, wait_s=5)["state"] not in ("queued", "running"):
                    break
            except ServerError as error:
                if error.status not in (0, 429, 503):
                    raise
            assert time.monotonic() < until, f"{job_id} does not end"


def check_all(store: SqlStore, ids: dict[str, Problem]) -> None:
    """Each is there, ended once, and with a plan that passes."""
    for job_id, problem in ids.items():
        job = store.get(job_id)
        assert job is not None, "lost"
        assert job.state == "succeeded", job
        assert [event.kind for event in store.events(job_id, after=0)].count("done") == 1, "finished twice"
        text = store.plan_text(job_id)
        assert text is not None
        verdict = verify(problem, parse_plan(text))
        assert verdict.passed, "a plan without a verdict"


def ask(client: Client, number: int) -> tuple[str, Problem]:
    """One small or larger question."""
    problem = make_toy_problem() if number % 3 else large_problem()
    limits = Limits(time_limit_s=30.0, max_rounds=1, seed=number) if number % 3 else Limits(time_limit_s=3.0)
    return client.submit(problem, limits=limits)["id"], problem


def test_kills_with_sqlite(tmp_path: Path):
    """Tests that kill -9 of solvers and of the service, between any two of its words, costs nothing."""
    site, chance = Site(folder=tmp_path), random.Random(1)
    site.start_all()
    ids: dict[str, Problem] = {}
    for number in range(KILLS):
        job_id, problem = ask(site.client, number)
        ids[job_id] = problem
        time.sleep(chance.uniform(0.0, 2.0))
        if number % 2:
            site.kill_a_solver(chance)
        else:
            site.kill("api")
    wait_all(site.client, list(ids), seconds=SECONDS + 20 * KILLS)
    site.close()
    store = SqlStore(SqliteDatabase(tmp_path / "data" / "pipeplan.sqlite"))
    check_all(store, ids)
    store.close_all()


def test_kills_with_postgres(tmp_path: Path, postgres: PostgresServer):
    """Tests that the same holds with workers of their own, which are killed too, and a database that crashes."""
    site, chance = Site(folder=tmp_path, url=postgres.fresh_database(), num_workers=2), random.Random(2)
    site.start_all()
    ids: dict[str, Problem] = {}
    for number in range(KILLS):
        job_id, problem = ask(site.client, number)
        ids[job_id] = problem
        time.sleep(chance.uniform(0.0, 2.0))
        what = ("worker-0", "solver", "api", "database")[number % 4]
        if what == "solver":
            site.kill_a_solver(chance)
        elif what == "database":
            postgres.stop(signal.SIGQUIT)
            postgres.start()
        else:
            site.kill(what)
    wait_all(site.client, list(ids), seconds=SECONDS + 60 * KILLS)
    site.close()
    assert site.url is not None
    store = SqlStore(PostgresDatabase(site.url))
    check_all(store, ids)
    store.close_all()


def test_killed_between_commit_and_reply(tmp_path: Path):
    """Tests that a client whose reply was lost sends again with its key and gets the job that was stored."""
    site = Site(folder=tmp_path)
    site.start_all()
    body = json.dumps({"workload": json.loads(_toy()), "limits": {"time_limit_s": 30.0, "max_rounds": 1}}).encode()
    headers = {"Idempotency-Key": "only-once", "Content-Type": "application/json"}
    connection = site.client._connect()
    connection.request("POST", "/v1/plans", body=body, headers=headers)
    store = SqlStore(SqliteDatabase(tmp_path / "data" / "pipeplan.sqlite"))
    until = time.monotonic() + 30
    while not store.recent("local", limit=2):  # committed; the reply is not read
        assert time.monotonic() < until
        time.sleep(0.005)
    site.kill("api")
    connection.close()
    job = json.loads(site.client._bytes("POST", "/v1/plans", body=json.loads(body), headers=headers))
    assert [stored.id for stored in store.recent("local", limit=9)] == [job["id"]]
    wait_all(site.client, [job["id"]], seconds=SECONDS)
    check_all(store, {job["id"]: make_toy_problem()})
    site.close()
    store.close_all()


def _toy() -> str:
    from profiles.workload import dump_workload, Workload  # noqa: I001

    problem = make_toy_problem()
    return dump_workload(Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=3))


class Frozen(JobRunner):
    """A worker that freezes before its last word until its lease has run out and another has finished the job."""

    other: JobRunner

    def run(self, job):  # type: ignore[no-untyped-def]
        finish = self.store.finish

        def freeze(mine, outcome):  # type: ignore[no-untyped-def]
            self.store.finish = finish  # type: ignore[method-assign]
            time.sleep(self.patience.lease_s + 0.5)
            taken = self.store.claim("other", lease_s=60.0)
            assert taken is not None
            self.other.run(taken)
            finish(mine, outcome)

        self.store.finish = freeze  # type: ignore[method-assign]
        super().run(job)


def test_a_frozen_worker_thaws(tmp_path: Path):
    """Tests that a worker that was frozen past its lease cannot finish the job a second time when it thaws."""
    from api.jobs.process import Child, ProcessLimits

    store = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    job = submit(store, make_toy_problem(), Limits(time_limit_s=60, max_rounds=1))
    children = [Child(ProcessLimits()) for _ in range(2)]
    patience = Patience(lease_s=2.0)
    frozen = Frozen(store, children[0], patience=patience, is_draining=lambda: False)
    frozen.other = JobRunner(store, children[1], patience=patience, is_draining=lambda: False)
    claimed = store.claim("frozen", lease_s=60.0)
    assert claimed is not None
    store.extend(claimed, lease_s=patience.lease_s)
    frozen.run(claimed)
    done = store.get(job.id)
    assert done is not None
    assert (done.state, done.attempt, done.crashes) == ("succeeded", 2, 1)
    check_all(store, {job.id: make_toy_problem()})
    for child in children:
        child.kill()
    store.close_all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def submit_many(client: Client) -> None:
    """More questions than a small disk holds."""
    for number in range(4, 60, 3):
        client.submit(make_toy_problem(), limits=Limits(seed=number))


def test_a_full_disk(small_disk: Path, tmp_path: Path):
    """Tests that a full disk is said (507 or 503), that reading goes on, and that work goes on once there is room."""
    site = Site(folder=tmp_path)
    (tmp_path / "data").symlink_to(small_disk)
    site.start_all()
    job_id, problem = ask(site.client, 1)
    wait_all(site.client, [job_id], seconds=SECONDS)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"):
        fill(filler)
    with pytest.raises(ServerError) as refusal:
        submit_many(Client(f"http://127.0.0.1:{site.port}", num_tries=1))
    assert refusal.value.status in (503, 507)
    assert site.client.job(job_id)["state"] == "succeeded"
    filler.unlink()
    again, _ = ask(site.client, 61)
    wait_all(site.client, [again], seconds=SECONDS)
    site.close()
    store = SqlStore(SqliteDatabase(small_disk / "pipeplan.sqlite"))
    check_all(store, {job_id: problem, again: make_toy_problem()})
    store.close_all()
