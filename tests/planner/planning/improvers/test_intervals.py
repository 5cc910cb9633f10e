"""Cuts by programmes: the dynamic one before the search, the integer one once it has begun."""

from collections.abc import Iterator

from planner.planning.improvers.improver import Leader
from planner.planning.improvers.intervals import Intervals
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.progress import Limits
from solver_models.local_search.multistart import JointSearch
from tests.planner.builders import make_layer, make_link, make_problem


def chain(*, memory_bytes: int) -> Problem:
    """Six unlike layers on three devices."""
    layers = [make_layer(f"l{number}", (40 + 7 * number, 60, 30)) for number in range(6)]
    links = [make_link(f"d{number} d{number + 1}") for number in range(2)]
    return make_problem(layers, links, num_microbatches=6, memory_bytes=memory_bytes)


def begin(problem: Problem, *, time_limit_s: float) -> tuple[SearchState, JointSearch, Intervals]:
    run = SearchState(problem, Limits(time_limit_s=time_limit_s), on_progress=print, should_stop=lambda: False)
    search = JointSearch(run.instance)
    return run, search, Intervals(run, search, leader=Leader(run, search))


def take(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def test_the_integer_programme_waits_for_the_search():
    """Tests that it is due once, after some rounds, and that its cut is a start of the search."""
    run, search, intervals = begin(chain(memory_bytes=10**9), time_limit_s=600.0)
    take(intervals.begin())
    assert run.source == "dynamic programme"
    assert "highspy" not in run.solvers
    assert not intervals.is_due(1)
    assert intervals.is_due(9)
    known, search.round = len(search.starts), 9
    take(intervals.take_step())
    assert "highspy" in run.solvers
    assert len(search.starts) == known + 1
    assert not intervals.is_due(9)


def test_it_comes_at_once_where_nothing_else_is_known():
    """Tests that without any candidate the integer programme is asked before the search."""
    run, search, intervals = begin(chain(memory_bytes=10**9), time_limit_s=600.0)
    search._allowed = lambda candidates: []  # type: ignore[method-assign]
    take(intervals.begin())
    assert "highspy" in run.solvers


def test_there_has_to_be_time():
    """Tests that it is not due where a few seconds are left."""
    _, _, intervals = begin(chain(memory_bytes=10**9), time_limit_s=3.0)
    take(intervals.begin())
    assert not intervals.is_due(9)
