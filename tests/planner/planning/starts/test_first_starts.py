"""First candidates: kept in order, and the best of them proposed once."""

from dataclasses import replace

import pytest

from benchmarks.generate import make_workload, parse_family
from planner.batch_problem import question_of_workload
from planner.planning.planning_params import FirstPlansParams, SearchParams
from planner.planning.runs.run import begin_run, ignore, never
from planner.planning.search_state import SearchState
from planner.planning.starts.class_pipelines import CLASS_PIPELINES, begin_with_classes
from planner.planning.starts.first_starts import LARGE_SEEDS, add_seeds, begin_large, propose_best_seed
from planner.problem import Options, Problem
from planner.progress import Limits


def make_run(*, quick_actions: int) -> SearchState:
    """A chain on enough devices for classes, taken for large."""
    problem = question_of_workload(make_workload(parse_family("chain-12x16-m4-loose-homogeneous-equal")), Options())
    assert isinstance(problem, Problem)
    first_plans = FirstPlansParams(large_actions=100, quick_actions=quick_actions)
    how = {"on_progress": ignore, "should_stop": never, "target": None}
    return begin_run(problem, Limits(max_rounds=1), params=SearchParams(first_plans=first_plans), **how)


@pytest.mark.parametrize("quick_actions", [1, 10**6])
def test_long_plans_are_verified_once(quick_actions: int):
    """Tests that a quick plan is there at once, a long one after all candidates, and that no other is verified."""
    run = make_run(quick_actions=quick_actions)
    assert run.is_large
    begin_large(run)
    assert (run.plan is None) is (quick_actions == 1)
    begin_with_classes(run)
    propose_best_seed(run)
    assert run.incumbent_ns == run.seeds[-1].objective
    assert run.source in (LARGE_SEEDS, CLASS_PIPELINES)
    verdict = run.verdict
    propose_best_seed(run)
    assert run.verdict is verdict
    run.window.close()


def test_the_first_plan_is_quick():
    """Tests that where all devices have too many actions for a quick plan, a first one is verified on a few of them.

    It is no seed, so the search begins with the same candidates as without it.
    """
    run = make_run(quick_actions=3 * 4 * 5)
    begin_large(run)
    assert run.plan is not None
    assert len(run.plan.schedule) <= 5
    assert run.source == LARGE_SEEDS
    known = make_run(quick_actions=1)
    begin_large(known)
    assert [seed.objective for seed in run.seeds] == [seed.objective for seed in known.seeds]
    propose_best_seed(run)
    assert run.incumbent_ns == run.seeds[-1].objective
    for each in (run, known):
        each.window.close()


def test_the_best_says_who_found_it():
    """Tests that candidates are kept worst first, and that one which is no better does not change whose the best is."""
    run = make_run(quick_actions=1)
    propose_best_seed(run)
    assert run.plan is None
    begin_large(run)
    best = run.seeds[-1]
    add_seeds(run, [replace(best, objective=best.objective + 1)], source="another")
    assert run.seeds[-1] is best
    assert run.seed_source == LARGE_SEEDS
    better = replace(best, objective=best.objective - 1)
    add_seeds(run, [better], source="another")
    assert run.seeds[-1] is better
    assert run.seed_source == "another"
    run.window.close()
