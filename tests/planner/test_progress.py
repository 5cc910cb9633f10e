"""When a run shall stop, and what its caller hears meanwhile: tests of planner/progress.py."""

import time
from itertools import pairwise

import pytest

from planner.progress import DEFAULT_PATIENCE, Limits, Progress
from tests.planner.hasty import make_plan
from tests.planner.planning.runs.test_dispatch import QUICK, evidence_of, make_row
from tests.planner.planning.test_search_state import make_run


def test_progress_only_improves():
    """Tests that incumbents only fall, bounds only rise, time only passes, and the last incumbent is the plan's."""
    seen: list[Progress] = []
    plan = make_plan(make_row(), limits=QUICK, on_progress=seen.append)
    assert {step.phase for step in seen} <= {"baselines", "bound", "search", "exact"}
    for earlier, later in pairwise(seen):
        assert earlier.elapsed_s <= later.elapsed_s
        if earlier.incumbent_ns is not None:
            assert later.incumbent_ns is not None
            assert later.incumbent_ns <= earlier.incumbent_ns
        if earlier.lower_bound_ns is not None:
            assert later.lower_bound_ns is not None
            assert later.lower_bound_ns >= earlier.lower_bound_ns
    assert seen[-1].incumbent_ns == evidence_of(plan).makespan_ns
    assert seen[-1].lower_bound_ns == evidence_of(plan).lower_bound_ns
    assert seen[-1].gap == evidence_of(plan).gap


@pytest.mark.slow
def test_the_user_stops_the_search_later():
    """Tests that a wish to stop is heard within seconds while the search runs, whatever else runs."""
    begin, worked = time.monotonic(), time.process_time()
    plan = make_plan(
        make_row(24, 6, num_microbatches=24),
        limits=Limits(time_limit_s=60),
        should_stop=lambda: time.monotonic() - begin > 2,
    )
    assert evidence_of(plan).stopped_by == "user"
    assert time.process_time() - worked < 10


def test_patience_counts_rounds_and_not_seconds():
    """Tests that a search ends after so many rounds without a better plan, however long it took to begin."""
    run = make_run(Limits(time_limit_s=10**6, patience=3))
    run.begin -= 10**5
    assert not run.is_over()
    for ended in range(3):
        assert not run.rounds_are_over(ended, 0.0)
        assert not run.is_over()
    run.rounds_are_over(3, 0.0)
    assert run.is_over()
    assert run.stopped_by == "no_improvement"


def test_a_better_plan_renews_patience():
    """Tests that the rounds are counted from the one in which the incumbent was found."""
    run = make_run(Limits(time_limit_s=10**6, patience=2))
    run.rounds = run.improved_round = 7
    assert not run.is_over()
    run.rounds = 9
    assert run.is_over()


def test_seconds_of_patience_need_a_round():
    """Tests that a search that has not ended a round is not ended by seconds of patience either."""
    run = make_run(Limits(time_limit_s=10**6, patience_s=5.0))
    run.begin_search()
    run.begin -= 100
    assert not run.is_over()
    run.rounds = 1
    assert run.is_over()
    assert run.stopped_by == "no_improvement"


def test_default_patience_leaves_other_limits_alone():
    """Tests that rounds of patience have a default only where no other limit was asked for."""
    assert Limits().patience_rounds == DEFAULT_PATIENCE
    assert Limits(max_rounds=2).patience_rounds is None
    assert Limits(patience_s=3.0).patience_rounds is None
    assert Limits(max_rounds=2, patience=1).patience_rounds == 1
    with pytest.raises(ValueError, match="patience = 0 is out of range"):
        Limits(patience=0)
