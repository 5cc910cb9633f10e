"""Tests of solver_models/simulation/preferences.py."""

import pytest

from planner.actions import parse_action
from planner.baselines.encoded_orders import order_by_rule
from solver_models.simulation.preferences import AS_READY, FORWARD_FIRST
from tests.solver_models.simulation.test_list_schedule import two_chunks


@pytest.mark.parametrize(
    ("kinds", "splits", "expected"),
    [
        (FORWARD_FIRST, True, "0F0 0F1 1F0 1F1 1I0 1I1 0I0 0I1 1W0 1W1 0W0 0W1"),
        (AS_READY, False, "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"),
    ],
)
def test_what_has_waited_longest(kinds: int, splits: bool, expected: str):
    """Tests that of what is ready the device takes what became ready first: 0F1 before 1F0, 1I1 before 0I0."""
    assert order_by_rule(two_chunks(), kinds=kinds, splits=splits) == [[parse_action(a) for a in expected.split()]]
