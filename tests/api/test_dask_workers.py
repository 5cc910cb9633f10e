"""Workers on Dask, with real processes: the same plan, work that is lost and done again, and what is refused."""

import os
import signal
import threading
import time
from collections.abc import Iterator
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
def cluster() -> "Iterator[Any]":
    """A scheduler with two processes, as somebody starts them on other machines."""
    how = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, **how) as made:
        yield made


@pytest.fixture(scope="module")
def workers(cluster: Any) -> Iterator[DaskWorkers]:
    with open_workers(cluster.scheduler_address) as found:
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
