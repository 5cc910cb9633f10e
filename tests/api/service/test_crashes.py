"""Kills: solvers, workers, the service, the database; a full disk; a worker that freezes and thaws.

After all of it no job is lost or doubled, none is finished twice, and every plan that is there passes the verifier
here. `make test` kills a few times on each engine; `make test-crash` a hundred times on each, both at once.
"""

import json
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import STORE_FAILURES, persistently
from planner.document import parse_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.workload import Workload, dump_workload
from tests.api.jobs.stores.looks import ping, recent
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.postgres import PostgresServer
from tests.api.service.servers import fill
from tests.api.service.site import Site

KILLS = int(os.environ.get("PIPEPLAN_KILLS", "4"))
"""Kills of each storm."""

SECONDS = 240.0
"""For what is left to do after a storm, and twenty more for each kill."""

CALM_S = 240.0
"""How long a storm waits at most for the service to finish a job before it kills again; a busy machine needs a while
to start it, and a job whose solver dies ten times is given up."""


TOY = make_toy_problem()


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Services whose processes do not outlive the test, even if it fails."""
    made: list[Site] = []

    def make(**more: Any) -> Site:
        made.append(Site(folder=tmp_path, **more))
        return made[-1]

    yield make
    for site in made:
        site.abandon()


@dataclass
class Storm:
    """Questions and kills in turns; what has ended is watched, so that nobody ends it again."""

    site: Site
    store: SqlStore
    chance: random.Random
    asked: dict[str, Problem] = field(default_factory=dict)
    """Problems by the ids that the service gave them."""
    ended: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """How every job that was seen to have ended did so."""

    def ask(self, number: int, *, is_large: bool) -> threading.Thread:
        """A client that sends its question until it has an answer; large ones take two seconds."""
        problem, limits = TOY, Limits(time_limit_s=30.0, max_rounds=1, seed=number)
        if is_large:
            problem, limits = (
                replace(large_problem(), num_microbatches=32 + number),
                Limits(time_limit_s=2.0, threads=1),
            )

        def work() -> None:
            self.asked[self.site.client.submit(problem, limits=limits)["id"]] = problem

        asker = threading.Thread(target=work)
        asker.start()
        return asker

    def look(self) -> int:
        """How many jobs have ended; none of them may change any more."""
        try:
            jobs = [job for job in recent(self.store, "local", limit=10_000) if job.is_finished]
        except STORE_FAILURES:
            return len(self.ended)
        for job in jobs:
            now = (job.state, job.finished_at, job.plan_sha256, job.attempt)
            assert self.ended.setdefault(job.id, now) == now, "finished twice"
        return len(jobs)

    def wait(self, number: int) -> None:
        """Either not at all, so that the kill comes between commit and reply, or until work is done again."""
        if number % 4 == 0:
            time.sleep(self.chance.uniform(0.0, 0.06))
            return
        before, until = self.look(), time.monotonic() + CALM_S
        while self.look() == before and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(self.chance.uniform(0.0, 1.5))

    def rage(self, kills: list[Callable[[], object]]) -> None:
        """`KILLS` kills in turns, each while a client asks."""
        for number in range(KILLS):
            asker = self.ask(number, is_large=number % 6 == 0)
            self.wait(number)
            kills[number % len(kills)]()
            asker.join()
        self.finish(KILLS)

    def finish(self, count: int) -> None:
        """When the weather is fine again: nothing is lost, nothing is there twice, and all is well."""
        assert len(self.asked) == count
        wait_all(self.site.client, list(self.asked), seconds=SECONDS + 20 * count)
        self.site.close()
        persistently(lambda: ping(self.store), seconds=SECONDS)  # our own connection may not have survived
        self.look()
        assert set(self.ended) == set(self.asked), "lost, or stored twice"
        check_all(self.store, self.asked)


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
    """One small question."""
    return client.submit(TOY, limits=Limits(time_limit_s=30.0, max_rounds=1, seed=number))["id"], TOY


def test_kills_with_sqlite(make_site: Callable[..., Site]):
    """Tests that kill -9 of the service and of solvers, between any two of its words, costs nothing."""
    site, chance = make_site(), random.Random(1)
    site.start_all()
    with site.store() as store:
        storm = Storm(site, store, chance)
        storm.rage([lambda: site.kill("api"), lambda: site.kill_a_solver(chance)])


def test_kills_with_postgres(make_site: Callable[..., Site], postgres: PostgresServer):
    """Tests that the same holds with workers of their own, which are killed too, and a database that crashes."""
    site, chance = make_site(url=postgres.fresh_database(), num_workers=2), random.Random(2)
    site.start_all()

    def crash_the_database() -> None:
        postgres.stop(signal.SIGQUIT)
        postgres.start()

    kills = [
        lambda: site.kill("api"),
        lambda: site.kill("worker-0"),
        lambda: site.kill_a_solver(chance),
        crash_the_database,
        lambda: site.kill("worker-1"),
    ]
    with site.store() as store:
        storm = Storm(site, store, chance)
        storm.rage(kills)


def test_workers_freeze_and_thaw(make_site: Callable[..., Site], postgres: PostgresServer):
    """Tests that a worker stopped in the middle of a job for longer than its lease spoils nothing when it goes on."""
    site, chance = make_site(url=postgres.fresh_database(), num_workers=2), random.Random(3)
    site.start_all()
    takeovers, asks = max(1, KILLS // 5), 0
    with site.store() as store:
        storm = Storm(site, store, chance)
        while takeovers:
            assert asks < 10 * max(2, KILLS // 5), "nobody took over"
            storm.ask(asks, is_large=True).join()
            asks += 1
            takeovers -= freeze_whoever_works(storm)
        storm.finish(asks)


def freeze_whoever_works(storm: Storm) -> bool:
    """Freeze the worker of the job that runs until another has taken it over, and a while longer.

    Returns:
        Whether it was: a job may have ended before the freeze.
    """
    site, until = storm.site, time.monotonic() + SECONDS
    while not (running := [job for job in recent(storm.store, "local", limit=9) if job.state == "running"]):
        if all(job.is_finished for job in recent(storm.store, "local", limit=9)):
            return False
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(storm.chance.uniform(0.0, 1.5))
    pid = int((running[0].worker or "").split(":")[1])
    role = next(role for role, process in site.processes.items() if process.pid == pid)
    site.freeze(role)
    try:
        while (job := storm.store.get(running[0].id)) is not None and job.attempt == running[0].attempt:
            if job.is_finished:
                return False
            assert time.monotonic() < until, "nobody took over"
            time.sleep(0.1)
        time.sleep(storm.chance.uniform(0.0, 4.0))
        return True
    finally:
        site.thaw(role)


def test_killed_between_commit_and_reply(make_site: Callable[..., Site]):
    """Tests that a client whose reply was lost sends again with its key and gets the job that was stored."""
    site = make_site()
    site.start_all()
    workload = Workload(profile=TOY.profile, cluster=TOY.cluster, num_microbatches=TOY.num_microbatches)
    tree = {"workload": json.loads(dump_workload(workload)), "limits": {"time_limit_s": 30.0, "max_rounds": 1}}
    with site.store() as store:
        for number in range(1 + KILLS // 10):
            lose_a_reply(site, store, body=tree | {"priority": number % 10})
        jobs = recent(store, "local", limit=99)
        assert len(jobs) == 1 + KILLS // 10
        wait_all(site.client, [job.id for job in jobs], seconds=SECONDS)
        check_all(store, {job.id: TOY for job in jobs})
    site.close()


def lose_a_reply(site: Site, store: SqlStore, *, body: dict[str, Any]) -> None:
    """Submit, kill the service as soon as the job is stored, and submit again: it is the same job."""
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json", "Cache-Control": "no-cache"}
    before = {job.id for job in recent(store, "local", limit=99)}
    connection = site.client._connect()
    connection.request("POST", "/v1/plans", body=json.dumps(body).encode(), headers=headers)
    until = time.monotonic() + 30
    while not (stored := {job.id for job in recent(store, "local", limit=99)} - before):  # the reply is not read
        assert time.monotonic() < until
        time.sleep(0.001)
    site.kill("api")
    connection.close()
    job = json.loads(site.client._bytes("POST", "/v1/plans", body=body, headers=headers))
    assert stored == {job["id"]}


def submit_many(client: Client) -> None:
    """More questions than a small disk holds."""
    for number in range(4, 60, 3):
        client.submit(TOY, limits=Limits(seed=number))


def test_a_full_disk(small_disk: Path, tmp_path: Path, make_site: Callable[..., Site]):
    """Tests that a full disk is said (507 or 503), that reading goes on, and that work goes on once there is room."""
    site = make_site()
    (tmp_path / "data").symlink_to(small_disk)
    site.start_all()
    job_id, problem = ask(site.client, 1)
    wait_all(site.client, [job_id], seconds=SECONDS)
    filler = fill(small_disk, "filler")
    with pytest.raises(ServerError) as refusal:
        submit_many(Client(f"http://127.0.0.1:{site.port}", num_tries=1))
    assert refusal.value.status in (503, 507)
    assert site.client.job(job_id)["state"] == "succeeded"
    filler.unlink()
    again, _ = ask(site.client, 61)
    wait_all(site.client, [again], seconds=SECONDS)
    site.close()
    with site.store() as store:
        check_all(store, {job_id: problem, again: TOY})
