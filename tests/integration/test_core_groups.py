"""Plans whose groups are threads, as real processes."""

import os
from pathlib import Path

import pytest

from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import losses, messages, start_ranks, write

MODEL = ["--model", "execute_failures:sound", "--steps", 2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_group_of_cores_is_one_process_with_threads(tmp_path: Path):
    """Tests that a stage on two cores is trained by one pinned process, as one process without a plan trains it."""
    wide = write(make_random_plan("0+1", cut=(4,), num_microbatches=4), tmp_path / "wide.json")
    alone = write(make_random_plan("0", cut=(4,), num_microbatches=4), tmp_path / "alone.json")
    threads = ["--groups", "threads"]
    ((code, said),) = start_ranks([[wide, *MODEL, *threads, "--losses", tmp_path / "wide"]])
    assert code == 0, said
    ((code, said),) = start_ranks([[alone, *MODEL, "--losses", tmp_path / "alone"]])
    assert code == 0, said
    flat = [loss for each in losses(tmp_path / "alone") for loss in each]
    assert [loss for each in losses(tmp_path / "wide") for loss in each] == pytest.approx(flat, rel=1e-6)


def test_cores_that_are_not_there_are_refused(tmp_path: Path):
    """Tests that a plan for more cores than a process may use says so before anything is trained."""
    count = len(os.sched_getaffinity(0)) + 1
    plan = make_random_plan("+".join(map(str, range(count))), cut=(4,), num_microbatches=4)
    ((code, said),) = start_ranks([[write(plan, tmp_path / "plan.json"), *MODEL, "--groups", "threads"]])
    assert code == 2
    assert f", but this process may use {count - 1}" in messages(said)[0]
