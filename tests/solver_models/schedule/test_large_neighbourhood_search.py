"""Tests of solver_models/schedule/large_neighbourhood_search.py."""

from solver_models.schedule.cp_neighbourhood import improve_window, play_orders
from solver_models.schedule.evaluation import play
from solver_models.schedule.large_neighbourhood_search import sweep
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.solve import solve_order
from solver_models.search_params import CpWindowParams
from tests.solver_models.schedule.test_cp_neighbourhood import holds
from tests.solver_models.schedule.test_solve import big
from tests.solver_models.schedule.test_tails import TINY


def test_sweep_improves():
    """Tests that windows shorten a poor schedule too large to be solved whole, within the time given."""
    problem = big(microbatches=12)
    words = one_by_one(problem)
    better = sweep(
        problem, words, time_limit_s=2, params=CpWindowParams(free_actions=60, most_windows=1_000, work=10.0)
    )
    assert better is not None
    assert better.makespan < 0.95 * play(problem, words).makespan
    assert holds(problem, better.device_orders)


def test_nothing_to_do():
    """Tests that empty windows, spans and words that deadlock are declined."""
    problem = TINY["even"]
    assert improve_window(play_orders(problem, one_by_one(problem)), start=10**6, end=10**7) is None
    assert play_orders(problem, {0: [], 1: []}) is None
    assert sweep(TINY["span"], one_by_one(TINY["span"]), time_limit_s=1) is None
    assert solve_order(problem).device_orders is not None
