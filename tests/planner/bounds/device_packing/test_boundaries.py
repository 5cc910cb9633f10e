"""Tests of planner/bounds/device_packing/boundaries.py."""

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.minimum_costs import Least
from planner.layout.costs import CostModel
from tests.planner.bounds.device_packing.test_packing_bound import heavy, unlike


def test_five_kinds_of_devices_are_four_at_most():
    """Tests that devices of many speeds are taken together by speed, every one in one kind."""
    kinds = Boundaries(Least(unlike(5, 1, 4, 2, 3), CostModel(unlike(5, 1, 4, 2, 3)))).kinds
    assert [[name for name, _ in kind.members] for kind in kinds] == [["slow1", "slow2"], ["slow3", "slow4"], ["slow5"]]
    assert [kind.count for kind in kinds] == [2, 2, 1]


def test_shares_of_a_microbatch():
    """Tests that three replicas that feed two give the middle one's samples to both, and the others' to one."""
    received, given = Boundaries(Least(heavy(4, 3), CostModel(heavy(4, 3)))).shares
    assert (received[3][2], given[3][2]) == (2, 1)
    assert (received[1][3], given[1][3]) == (1, 1)
    assert (received[2][2], given[2][2]) == (2, 2)
