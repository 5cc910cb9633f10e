"""Device orders as arrays, to the simulator: tests of planner/simulation/encoding.py."""

import pytest

from planner.actions import Action
from planner.simulation.encoding import MOST, encode


def test_orders_are_columns():
    """Tests that kinds, stages, microbatches and devices are those of the actions, an empty list among them."""
    shared = (Action("F", 0, 0), Action("I", 0, 0), Action("W", 0, 0))
    orders = encode({"a": shared, "b": (), "c": shared, "d": (Action("B", 2, 5),)})
    assert orders is not None
    assert orders.kind.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert orders.place.tolist() == [0, 1, 2, 0, 1, 2, 1]
    assert orders.device.tolist() == [0, 0, 0, 2, 2, 2, 3]
    assert (orders.stage.tolist()[-1], orders.microbatch.tolist()[-1]) == (2, 5)
    assert encode({}) is not None


@pytest.mark.parametrize(
    "spoilt", ["0F0", Action("X", 0, 0), Action("F", -1, 0), Action("F", 0, MOST), Action("F", True, 0), ("F", 0, 0)]
)
def test_what_is_no_action_is_not_encoded(spoilt: object):
    """Tests that one wrong entry leaves no arrays, whatever stands beside it."""
    assert encode({"a": (Action("F", 0, 0), spoilt)}) is None  # type: ignore[dict-item]
