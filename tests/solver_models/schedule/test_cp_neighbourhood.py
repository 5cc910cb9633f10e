"""Windows: the same rules with the past and the future kept."""

import pytest
from ortools.sat.python import cp_model

from solver_models.instance import ScheduleInstance
from solver_models.schedule.cp_neighbourhood import _Window, improve_window, play_orders
from solver_models.schedule.evaluation import play
from solver_models.schedule.serial_schedule import one_by_one
from tests.solver_models.schedule.test_solve import best_of, chain, end_of
from tests.solver_models.schedule.test_tails import TINY
from tests.solver_models.schedule.test_variables import peak_units

PLAIN = {
    name: problem for name, problem in TINY.items() if problem.objective == "makespan" and not name.startswith("B or I")
}
"""Without a choice between B and I then W, which windows leave as it is."""


def holds(problem: ScheduleInstance, words: dict) -> bool:
    """Whether words fit in memory on every device."""
    return all(peak_units(problem, d, word) <= problem.devices[d].memory for d, word in words.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_window_over_everything_is_the_whole_model(name: str):
    """Tests that a window from beginning to end finds the optimum."""
    problem = PLAIN[name]
    better = improve_window(play_orders(problem, one_by_one(problem)), start=0, end=10**6)
    assert better is not None
    assert better.makespan == best_of(problem) == end_of(problem, better.device_orders)
    assert holds(problem, better.device_orders)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("share", [(0, 3), (2, 6), (5, 9)])
def test_what_is_played_is_feasible(name: str, share: tuple[int, int]):
    """Tests that every variable of a window is hinted, that the hint is a solution, and costs what is played."""
    problem = PLAIN[name]
    words = one_by_one(problem)
    played = play(problem, words)
    window = _Window(played, words, start=played.makespan * share[0] // 9, end=played.makespan * share[1] // 9)
    if not window.free:
        return
    assert len(window.model.proto.solution_hint.vars) == len(window.model.proto.variables)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(window.model) == cp_model.OPTIMAL
    assert solver.objective_value // 1000 in (played.makespan, played.makespan + 1)


@pytest.mark.parametrize("name", PLAIN)
def test_windows_stay_within_the_rules(name: str):
    """Tests that words stay playable, within memory and no longer, window after window."""
    problem = PLAIN[name]
    words = one_by_one(problem)
    length = play(problem, words).makespan
    for at in range(0, length, 3):
        better = improve_window(play_orders(problem, words), start=at, end=at + 8)
        if better is None:
            continue
        assert better.makespan == end_of(problem, better.device_orders) <= length
        assert holds(problem, better.device_orders)
        words, length = better.device_orders, better.makespan


def test_only_the_window_changes():
    """Tests that what starts before or after the window keeps its place in the order."""
    problem = chain([(3, 4, 2), (5, 2, 6), (2, 2, 2)], microbatches=6)
    words = one_by_one(problem)
    played = play(problem, words)
    third = played.makespan // 3
    better = improve_window(play_orders(problem, words), start=third, end=2 * third)
    assert better is not None
    for device, word in words.items():
        starts = [played.starts[kind, stage, m] for kind, stage, m in word]
        first = sum(start < third for start in starts)
        last = sum(start < 2 * third for start in starts)
        assert better.device_orders[device][:first] == word[:first]
        assert better.device_orders[device][last:] == word[last:]
