"""When the order of the best candidate gets a session of order search."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chains import make_one_by_one
from benchmarks.generate import parse_family
from planner.planning.improvers.improver import Leader
from planner.planning.improvers.order_sessions import Sessions
from planner.planning.runs.run import bound
from planner.planning.search_state import SearchState
from planner.problem import Options
from planner.progress import Limits
from solver_models.local_search.multistart import JointSearch
from solver_models.starts.first_candidates import make_seeds

ROUNDS = range(1, 49)


def begin() -> Sessions:
    """Sessions of a run whose best candidate has had one."""
    problem = replace(make_one_by_one(parse_family("chain-12x4-m8-tight-homogeneous-equal")), options=Options())
    run = SearchState(problem, Limits(time_limit_s=600.0, threads=1), on_progress=lambda _: None, should_stop=bool)
    bound(run)
    search = JointSearch(run.instance)
    search.add(make_seeds(search.searcher))
    sessions = Sessions(run, search, leader=Leader(run, search))
    assert search.best is not None
    sessions.order_search(search.best)
    return sessions


@pytest.mark.parametrize(("part", "every"), [(1.0, 4), (0.2, 8), (0.01, 16)])
def test_an_order_that_closes_little_waits_longer(part, every):
    """Tests that sessions are the rarer, the less of the gap lies between a candidate and its own bound."""
    sessions = begin()
    best, lower_bound = sessions.search.best, sessions.run.lower_bound
    assert best is not None
    assert lower_bound is not None
    (order,) = sessions.orders.values()
    order.lower_bound = best.objective - int(np.ceil(part * (best.objective - lower_bound.value_ns)))
    assert [rounds for rounds in ROUNDS if sessions.is_due(rounds)] == list(range(every, 49, every))


def test_the_first_session_of_a_candidate_does_not_wait():
    """Tests that a candidate without a session, and a contender, get one after every fourth round."""
    sessions = begin()
    (key,), (order,) = sessions.orders.keys(), sessions.orders.values()
    assert sessions.search.best is not None
    order.lower_bound = sessions.search.best.objective
    sessions.contenders = {key: sessions.search.best}
    assert sessions.is_due(4)
    sessions.contenders.clear()
    assert not sessions.is_due(4)
    sessions.orders.clear()
    assert sessions.is_due(4)
