"""Workers on Dask, with real processes: the same plan, work that is lost and done again, and what is refused."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")

from api import dask_workers  # noqa: E402
from api.dask_workers import DaskWorkers, open_workers  # noqa: E402
from api.jobs.request import PlanRequest  # noqa: E402
from api.jobs.workers import solver_process  # noqa: E402
from planner.document import parse_plan  # noqa: E402
from planner.progress import Limits  # noqa: E402
from solver_models.local_search.portable_tasks import PortableTask  # noqa: E402
from tests.api.worlds import Shell  # noqa: E402
from tests.planner.planning.runs.test_spread_steps import alike, chain, planned  # noqa: E402


@dataclass(frozen=True)
class Slow:
    """A task that the first one to do it ends once somebody says so."""

    folder: Path

    def work(self, number: int) -> tuple[int, int]:
        began = self.folder / "began"
        if not began.exists():
            began.write_text(str(os.getpid()))
            while not (self.folder / "end").exists():
                time.sleep(0.05)
        return number, os.getpid()


@pytest.fixture(scope="module")
def started() -> "Iterator[Any]":
    """A scheduler with two processes, as somebody starts them on other machines."""
    how = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, **how) as made:
        yield made


@pytest.fixture
def cluster(started: Any) -> Any:
    """The same, once both answer: another takes the place of one that a test has killed."""
    until = time.monotonic() + 120
    with distributed.Client(started.scheduler_address, set_as_default=False) as client:
        while len(client.run(os.getpid, on_error="ignore")) < 2:
            assert time.monotonic() < until, "a process that was killed has not come back"
            time.sleep(0.05)
    return started


@pytest.fixture(scope="module")
def workers(started: Any) -> Iterator[DaskWorkers]:
    with open_workers(started.scheduler_address) as found:
        yield found


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_the_plan_is_that_of_one_process(workers: DaskWorkers):
    """Tests that a number of rounds on two processes gives the plan of one, and says how many did how many tasks."""
    plan = planned(chain(), workers)
    assert alike(plan) == alike(planned(chain(), None))
    assert (plan.evidence.workers, plan.evidence.worker_tasks) == (2, workers.num_tasks)
    assert workers.num_tasks > 0


def test_what_a_killed_worker_did_is_done_again(workers: DaskWorkers, tmp_path: Path):
    """Tests that SIGKILL in the middle of a task costs that task, which another process does."""
    future = workers.submit(PortableTask(Slow(tmp_path), "work", (7,)), may_start=always, is_over=never)
    while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
        time.sleep(0.05)
    victim = int((tmp_path / "began").read_text())
    os.kill(victim, signal.SIGKILL)
    ended = future.result(timeout=60)
    assert ended is not None
    number, process = ended[0]
    assert number == 7
    assert process not in (victim, os.getpid())


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """It runs again in the end."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.mark.slow
def test_what_a_frozen_worker_has_is_done_here(
    workers: DaskWorkers, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Tests that a worker without a heartbeat loses its task and gets no other, and is refused by name at the start."""
    monkeypatch.setattr(dask_workers, "_SILENT_S", 3.0)
    future = workers.submit(PortableTask(Slow(tmp_path), "work", (7,)), may_start=always, is_over=never)
    while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
        time.sleep(0.05)
    victim = int((tmp_path / "began").read_text())
    with frozen(victim):
        assert future.result(timeout=60) == ((7, os.getpid()), pytest.approx(0, abs=5))
        again = [
            workers.submit(PortableTask(Slow(tmp_path), "work", (number,)), may_start=always, is_over=never)
            for number in range(4)
        ]
        assert victim not in {ended[0][1] for each in again if (ended := each.result(timeout=60))}
        monkeypatch.setattr(dask_workers, "_START_S", 3.0)
        said = refusal_of(cluster.scheduler_address)
    (tmp_path / "end").touch()
    assert re.search(r"'tcp://[\d.:]+' tcp://[\d.:]+ did not answer within 3 s; end what is frozen there", said), said


def test_a_task_whose_workers_restart_elsewhere_is_done_here(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Tests that a task kept from a silent worker does not wait for an address whose worker died and has another."""
    monkeypatch.setattr(dask_workers, "_SILENT_S", 0.5)
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        silent, other = (processes := client.run(os.getpid))
        told = client.scheduler_info

        def scheduler_info() -> dict[str, Any]:
            found = told()["workers"]
            return {"workers": {name: {"last_seen": 0 if name == silent else time.monotonic()} for name in found}}

        monkeypatch.setattr(client, "scheduler_info", scheduler_info)
        alone = DaskWorkers(client, num_workers=2)
        while alone._watch.heard != (other,):
            time.sleep(0.05)
        future = alone.submit(PortableTask(Slow(tmp_path), "work", (7,)), may_start=always, is_over=never)
        while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
            time.sleep(0.05)
        assert (tmp_path / "began").read_text() == str(processes[other])
        os.kill(processes[other], signal.SIGKILL)
        try:
            ended = future.result(timeout=20)
        finally:
            alone.close()
    assert ended is not None
    assert ended[0] == (7, os.getpid())


@pytest.mark.slow
def test_a_frozen_scheduler_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that tasks are done here when the scheduler does not answer, that none is once nobody waits, and that it is
    refused at the start."""
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    command = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1")
    told = tmp_path / "where"
    scheduler = subprocess.Popen([*command, "--port", "0", "--scheduler-file", told], stderr=subprocess.DEVNULL)
    try:
        while not told.exists() or not told.read_text().endswith("}"):
            time.sleep(0.05)
        where = json.loads(told.read_text())["address"]
        client = distributed.Client(where, set_as_default=False)
        alone = DaskWorkers(client, num_workers=2)
        with frozen(scheduler.pid):
            is_over, task = threading.Event(), PortableTask(Slow(tmp_path), "work", (7,))
            (tmp_path / "began").touch()
            left = alone.submit(task, may_start=always, is_over=is_over.is_set)
            time.sleep(1)
            is_over.set()
            assert left.result(timeout=10) is None
            monkeypatch.setattr(dask_workers, "_ALONE_S", 1.0)
            ended = alone.submit(task, may_start=always, is_over=never).result(timeout=10)
            assert ended is not None
            assert ended[0] == (7, os.getpid())
            assert "no Dask scheduler answers at" in refusal_of(where)
        alone.close()
        client.close()
    finally:
        scheduler.kill()
        scheduler.wait()


def test_a_task_that_nobody_waits_for_is_left(workers: DaskWorkers, tmp_path: Path):
    """Tests that a task that never ends is left once the time is over, and that one is not begun after it."""
    is_over = threading.Event()
    task = PortableTask(Slow(tmp_path), "work", (7,))
    future = workers.submit(task, may_start=always, is_over=is_over.is_set)
    while not (tmp_path / "began").exists():
        time.sleep(0.05)
    is_over.set()
    assert future.result(timeout=30) is None
    (tmp_path / "end").touch()
    assert workers.submit(task, may_start=always, is_over=is_over.is_set).result(timeout=30) is None
    assert workers.submit(task, may_start=never, is_over=never).result(timeout=30) is None


def refusal_of(where: str) -> str:
    with pytest.raises(ValueError, match=r"^workers: ") as refused, open_workers(where):
        pass
    return str(refused.value)


@pytest.mark.slow
def test_a_process_frozen_before_it_has_begun_holds_up_nobody(monkeypatch: pytest.MonkeyPatch):
    """Tests that one of this machine's processes that never starts is refused with its number, and is ended."""
    monkeypatch.setattr(dask_workers, "_START_S", 5.0)
    scale, others, born = distributed.LocalCluster.scale, {*multiprocessing.active_children()}, list[Any]()

    def scale_and_freeze(cluster: Any, count: int) -> None:
        scale(cluster, count)
        while not born:
            born.extend({*multiprocessing.active_children()} - others)
            time.sleep(0.01)
        os.kill(born[0].pid, signal.SIGSTOP)

    monkeypatch.setattr(distributed.LocalCluster, "scale", scale_and_freeze)
    said = refusal_of("1")
    assert re.search(r"'1' .* did not answer within 5 s; end what is frozen there", said), said
    born[0].join(20)
    assert born[0].exitcode == -signal.SIGKILL


def test_another_release_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    """Tests that workers of another release are refused with both releases and what to do."""
    ours = ("9.9.9", *dask_workers.about()[1:])
    monkeypatch.setattr(dask_workers, "ABOUT", ours)
    said = refusal_of(cluster.scheduler_address)
    assert "but here are 9.9.9" in said
    assert "install the same there" in said


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at 'tcp://127.0.0.1:1'"),
        ("udp://nowhere", "no Dask scheduler answers at 'udp://nowhere'"),
        ("0", "0 processes are out of range; give 1 to"),
    ],
)
def test_an_address_without_a_scheduler_is_refused(where: str, said: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that what does not answer is named, with what to start or leave out."""
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    assert said in refusal_of(where)


def test_without_a_scheduler_tasks_are_done_here(tmp_path: Path):
    """Tests that tasks are done in this process once the scheduler has gone."""
    (tmp_path / "began").touch()
    made = distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", processes=False, silence_logs=50)
    with made, distributed.Client(made, set_as_default=False) as client:
        alone = DaskWorkers(client, num_workers=1)
        monkey = dask_workers._ALONE_S
        dask_workers._ALONE_S = 0.5
        ended = alone.submit(PortableTask(Slow(tmp_path), "work", (3,)), may_start=always, is_over=never).result(60)
        dask_workers._ALONE_S = monkey
        alone.close()
    assert ended is not None
    assert ended[0] == (3, os.getpid())


def test_the_command_line_names_what_does_not_answer(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that an address without a scheduler is bad usage, with option, value and remedy."""
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    refused = shell.run("plan", "workload.json", "--workers", "tcp://127.0.0.1:1")
    said = " ".join(refused.err.split())
    assert (refused.code, refused.out) == (2, "")
    assert all(part in said for part in ("--workers", "'tcp://127.0.0.1:1'", "start one with `dask scheduler`")), said


def test_a_service_spreads_its_jobs(cluster: Any):
    """Tests that a solver with a scheduler's address has tasks done by its workers."""
    master: Any = SimpleNamespace(stop=threading.Event(), tell=lambda *_, **__: None)
    order = {"request": PlanRequest(problem=chain(), limits=Limits(max_rounds=0)).render()}
    answer = solver_process.solve(master, order, most_threads=1, scheduler=cluster.scheduler_address)
    evidence = parse_plan(answer["plan"]).evidence
    assert evidence is not None
    assert evidence.workers == 2
    assert evidence.worker_tasks


def test_a_service_without_its_scheduler_plans_alone(monkeypatch: pytest.MonkeyPatch):
    """Tests that a job whose scheduler does not answer is planned without workers."""
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    with solver_process._workers("tcp://127.0.0.1:1") as found:
        assert found is None
