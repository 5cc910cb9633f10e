"""Which ends of processes are losses, and which are the program's own failures."""

import os
from dataclasses import replace

import pytest

from planner.execute.record.rank_record import RankRecord, is_running, start_ticks
from planner.launch.job_end import judge_end

RUNNING = RankRecord(rank=0, device="d0", host="h0", machine="m0", process=1, started=1)


def record(rank: int, *, code: int | None = None, at_ns: int = 0, was_asked: bool = False) -> RankRecord:
    """One process; `code` None: it runs."""
    named = replace(RUNNING, rank=rank, device=f"d{rank}", host=f"h{rank}")
    state = "stopping" if code is None and was_asked else "running" if code is None else "ended"
    return replace(named, state=state, code=code or 0, at_ns=at_ns, was_asked=was_asked)


@pytest.mark.parametrize(
    ("records", "silent", "down", "lost", "failure"),
    [
        pytest.param([record(0), record(1, code=-9)], (), (), ["d1"], "", id="killed"),
        pytest.param([record(0, code=1, at_ns=7), record(1, code=-9, at_ns=5)], (), (), ["d1"], "", id="fails after"),
        pytest.param([record(0), record(1)], (1,), (), ["d1"], "", id="vanished"),
        pytest.param([record(0, code=1), record(1, was_asked=True)], (), ("h1",), ["d1"], "", id="host down"),
        pytest.param([record(0, code=-9), record(1, code=-9)], (), (), ["d0", "d1"], "", id="both"),
        pytest.param([record(0, code=-9, was_asked=True)], (), (), [], "", id="asked, then killed"),
        pytest.param([record(0, code=-15, was_asked=True)], (), (), [], "", id="asked"),
        pytest.param([record(0, code=3)], (), (), [], "rank 0 (d0) ended by itself with exit code 3", id="failed"),
        pytest.param(
            *([record(0, code=1, at_ns=7), record(1, code=-11, at_ns=5)], (), (), []),
            *("rank 1 (d1) ended by itself with signal SIGSEGV",),
            id="the first counts",
        ),
        pytest.param(
            *([record(0, code=1, at_ns=4), record(1, code=-9, at_ns=5)], (), (), ["d1"]),
            *("rank 0 (d0) ended by itself with exit code 1",),
            id="killed after a failure",
        ),
    ],
)
def test_ends(records, silent, down, lost, failure):
    """Tests that killed and vanished processes and hosts that are down are losses, and what fails by itself is not."""
    end = judge_end(records, silent=silent, down_hosts=down)
    assert (list(end.lost), end.failure) == (lost, failure)


def test_who_runs_is_known_here_only():
    """Tests that a process of this machine runs if number and start agree, and that of others nothing is said."""
    mine = replace(RUNNING, machine=os.uname().nodename, process=os.getpid(), started=start_ticks(os.getpid()) or 0)
    assert is_running(mine) is True
    assert is_running(replace(mine, started=mine.started + 1)) is False
    assert is_running(replace(mine, machine="another")) is None
    assert is_running(replace(mine, machine="another", state="ended")) is False
