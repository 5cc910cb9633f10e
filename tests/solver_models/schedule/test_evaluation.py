"""Tests of solver_models/schedule/evaluation.py."""

import itertools

import pytest

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
)
from solver_models.schedule.evaluation import in_order, play
from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import QUEUED, best_of, chain, end_of, instance, lane, words_of
from tests.solver_models.schedule.test_tails import TINY
from tests.solver_models.schedule.test_variables import peak_units


@pytest.mark.parametrize("name", QUEUED)
def test_free_links_are_a_floor(name: str):
    """Tests that with queues on links the optimum is at most the best under the rule by readiness."""
    problem = QUEUED[name]
    best = best_of(problem, is_queued=True)
    result = solve_order(problem)
    assert result.status == "optimal"
    assert best is not None
    assert result.device_orders is not None
    assert result.objective is not None
    assert result.objective <= best <= play(problem, result.device_orders).objective


def test_play_agrees_with_longest_paths():
    """Tests that the event-driven player gives the times of the longest-path evaluation where no link is contended."""
    for problem in TINY.values():
        devices = sorted({own.device for own in problem.replicas})
        everything = [list(itertools.islice(words_of(problem, device), 40)) for device in devices]
        for combination in itertools.islice(itertools.product(*everything), 200):
            words = dict(zip(devices, combination, strict=True))
            played = play(problem, words)
            assert (None if played is None else played.objective) == end_of(problem, words)


def test_microbatches_are_renumbered():
    """Tests that words whose microbatches are out of order are read as the same words in order."""
    word = [(FORWARD, 0, 1), (FORWARD, 0, 0), (INPUT_GRAD, 0, 0), (BACKWARD, 0, 1), (WEIGHT_GRAD, 0, 0)]
    assert in_order({7: word}) == {
        7: [(FORWARD, 0, 0), (FORWARD, 0, 1), (INPUT_GRAD, 0, 0), (BACKWARD, 0, 1), (WEIGHT_GRAD, 0, 0)]
    }


@pytest.mark.parametrize("short", [0, 1])
def test_rounded_sizes_are_checked(short: int):
    """Tests that where bytes are rounded, words that fit are called optimal, and words that do not are not given."""
    stash = 10**12 + 7
    fields = {"held": stash, "stash": stash, "weight_stash": stash - 10**11}
    times = [(3 * 10**9 + 1, 4 * 10**9, 10**9)]
    problem = chain(times, microbatches=2, budget=stash - short, **fields)
    result = solve_order(problem)
    assert result.status == ("optimal", "unknown")[short]
    assert (result.device_orders is None) == bool(short)


def test_memory_of_an_action_without_length_is_checked():
    """Tests that words are not given if only an action that takes no time breaks the memory limit."""
    own = lane(0, 0, (1, 0, 3), held=1, stash=3, weight_stash=0)
    problem = instance([own], budget=3, objective="span")
    result = solve_order(problem)
    assert result.device_orders is None or peak_units(problem, 0, result.device_orders[0]) <= 3
