"""Brief order searches on stages near the bound."""

import pytest

from benchmarks.generate import parse_family
from planner.planning.improvers.near_bound_trials import try_orders
from planner.planning.runs.run import bound
from planner.planning.search_state import SearchState
from planner.progress import Limits
from solver_models.local_search.multistart import JointSearch
from tests.planner.generated_chains import make_one_by_one


def begin(*, size: str = "24x4-m8", max_rounds: int | None = 1) -> tuple[SearchState, JointSearch]:
    """A run on a chain over two hosts of two speeds whose bound, and stages near it, are known."""
    problem = make_one_by_one(parse_family(f"chain-{size}-tight-two-level-classes"))
    limits = Limits(time_limit_s=60.0, max_rounds=max_rounds)
    run = SearchState(problem, limits, on_progress=lambda _: None, should_stop=lambda: False)
    bound(run)
    return run, JointSearch(run.instance)


@pytest.mark.slow
def test_no_turn_begins_without_time():
    """Tests that nothing is tried once the time limit is over, nor after the user has asked for the end."""
    for max_rounds, should_stop in ((None, False), (1, True)):
        run, search = begin(max_rounds=max_rounds)
        run.begin -= 100.0 if max_rounds is None else 0.0
        run.should_stop = lambda stop=should_stop: stop
        try_orders(run, search)
        assert not search.polished


def test_nothing_is_tried_without_stages_near_the_bound():
    """Tests that a problem without such stages is left alone."""
    run, search = begin()
    run.near_bound = []
    try_orders(run, search)
    assert not search.polished
