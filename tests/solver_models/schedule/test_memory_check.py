"""Tests of solver_models/schedule/memory_check.py."""

import pytest

from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import chain, instance, lane
from tests.solver_models.schedule.test_variables import peak_units


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
