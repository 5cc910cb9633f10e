"""What a process does first that computes on a host."""

import os
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from planner.execute.run.host_process import own_cores, settle_on_host  # noqa: E402 torch may be missing


def told(rank: object, count: object) -> dict[str, str]:
    """What torchrun tells a process of a host."""
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}


def test_processes_of_a_host_share_its_cores():
    """Tests that parts are equal, that none is in two, and that they are of those that a process may use."""
    usable = (2, 3, 5, 7, 8, 9, 11)
    parts = [own_cores(told(rank, 3), usable=usable, num_threads=2) for rank in range(3)]
    assert parts == [(2, 3), (5, 7), (8, 9)]


@pytest.mark.parametrize(
    ("environment", "num_threads"),
    [
        pytest.param({}, 1, id="nobody started it"),
        pytest.param({"LOCAL_RANK": "0"}, 1, id="started by something else"),
        pytest.param(told(0, 1), 1, id="alone on the host"),
        pytest.param(told(0, 5), 1, id="more processes than cores"),
        pytest.param(told(1, 2), 3, id="more threads than cores in a part"),
        pytest.param(told("one", 2), 1, id="no number"),
        pytest.param(told(2, 2), 1, id="out of range"),
    ],
)
def test_who_does_not_share_keeps_all_cores(environment: dict[str, str], num_threads: int):
    """Tests that no process is confined whose part is unknown or too small."""
    assert own_cores(environment, usable=(0, 1, 2, 3), num_threads=num_threads) == ()


@pytest.fixture
def cores() -> Iterator[list[int]]:
    """Of this process, which has them all again at the end."""
    usable = os.sched_getaffinity(0)
    yield sorted(usable)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), usable)


def test_a_process_and_its_threads_settle_on_their_part(cores: list[int], monkeypatch: pytest.MonkeyPatch):
    """Tests that all threads are confined to it, and that none is where nobody shall be pinned."""
    if len(cores) < 2:
        pytest.skip("this host has one core")
    monkeypatch.setattr("planner.execute.run.host_process.keep_freed_memory", lambda: False)
    monkeypatch.setattr("planner.execute.run.host_process.torch.get_num_threads", lambda: 1)
    for name, value in told(1, 2).items():
        monkeypatch.setenv(name, value)
    handed = []
    monkeypatch.setattr("planner.execute.run.host_process.release_freed_memory", lambda: handed.append("back"))
    settle_on_host(pins=False, keeps=False)
    assert handed == ["back"]
    assert sorted(os.sched_getaffinity(0)) == cores
    settle_on_host()
    half = len(cores) // 2
    assert {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")} == {
        frozenset(cores[half : 2 * half])
    }
