"""Tests of planner/planning/starts/interval_cuts.py."""

from dataclasses import replace

from planner.planning import SearchParams
from planner.planning.search_state import SearchState
from planner.planning.starts.interval_cuts import INTERVAL_CUTS, add_interval_cuts, may_cut
from planner.problem import Problem
from planner.progress import Limits
from solver_models.local_search.multistart import JointSearch
from tests.planner.builders import make_layer, make_link, make_problem


def chain() -> Problem:
    """Six unlike layers on three devices."""
    layers = [make_layer(f"l{number}", (40 + 7 * number, 60, 30)) for number in range(6)]
    links = [make_link(f"d{number} d{number + 1}") for number in range(2)]
    return make_problem(layers, links, num_microbatches=6, memory_bytes=10**9)


def begin(problem: Problem, **params: object) -> SearchState:
    own = SearchParams(**params)
    return SearchState(problem, Limits(time_limit_s=3600), on_progress=print, should_stop=lambda: False, params=own)


def test_cuts_are_starts_of_the_search():
    """Tests that the best cuts are offered, those whose stages recompute, too, each with devices of its own."""
    counts = []
    for recompute in (False, True):
        run = begin(replace(chain(), options=replace(chain().options, recompute=recompute)))
        search = JointSearch(run.instance)
        assert may_cut(run)
        add_interval_cuts(run, search)
        counts.append(len(search.starts))
        assert search.best is not None
        assert all(len(set(start.groups)) == len(start.groups) for start in search.starts)
    assert 1 <= counts[0] < counts[1]


def test_stages_have_to_be_open():
    """Tests that there are none where stages are given, or where the part is left out."""
    given = replace(chain().options, partition=(("l0", "l1", "l2"), ("l3", "l4", "l5")))
    assert not may_cut(begin(replace(chain(), options=given)))
    assert not may_cut(begin(chain(), without=(INTERVAL_CUTS,)))
