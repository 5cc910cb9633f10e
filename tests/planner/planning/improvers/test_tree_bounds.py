"""Trees over the orders of given stages: tests of planner/planning/improvers/tree_bounds.py."""

from benchmarks.orders import make_problem, uneven_times
from planner.evidence.certificate import check_certificate
from planner.lowering import make_instance
from planner.planning import make_plan
from planner.planning.improvers.tree_bounds import OrderTrees
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.progress import Limits
from solver_models.local_search.search import Searcher


def uneven(microbatches: int) -> Problem:
    """Five stages in half of 1F1B's memory."""
    return make_problem(uneven_times(5, seed=2), num_microbatches=microbatches, memory=0.5)


def begin(problem: Problem) -> tuple[SearchState, OrderTrees]:
    """A run that has no plan yet."""
    limits = Limits(time_limit_s=600, max_rounds=4, threads=1)
    run = SearchState(problem, limits, on_progress=lambda _: None, should_stop=lambda: False)
    return run, OrderTrees(run, Searcher(make_instance(problem, run.costs)))


def test_the_best_order_is_proved():
    """Tests that an order of stages that are given is proved best by a certificate, not by a solver's word."""
    problem = uneven(10)
    evidence = make_plan(problem, limits=Limits(time_limit_s=600, max_rounds=4, threads=2)).evidence
    assert evidence is not None
    assert (evidence.bound_kind, evidence.lower_bound_ns) == ("orders", evidence.makespan_ns)
    assert check_certificate(problem, evidence.certificate) == evidence.makespan_ns


def test_less_is_shown_where_not_all_is_closed():
    """Tests that the largest value is found that few nodes show, and more nodes show more."""
    _, trees = begin(uneven(15))
    best = 105_774_000  # as CP-SAT proves
    few, many = (trees._raise(nodes, low=best * 98 // 100, high=best * 101 // 100) for nodes in (3, 60))
    assert few is not None
    assert many is not None
    assert best * 98 // 100 < few.value_ns < many.value_ns <= best


def test_it_has_its_steps_ever_more_rarely():
    """Tests that steps come after 2, 4 and 8 rounds, none without a plan, none where no tree is looked at."""
    run, trees = begin(uneven(10))
    due = []
    for rounds in range(10):
        if trees.is_due(rounds):
            list(trees.take_step())
            due.append(rounds)
    assert due == [2, 4, 8]
    assert run.lower_bound is None
    assert not any(begin(uneven(400))[1].is_due(rounds) for rounds in range(10))
