"""Which devices of a class the stages get: tests of solver_models/partition/device_assignment.py."""

from solver_models.partition.device_assignment import assign_devices
from solver_models.partition.partition_instance import Interval
from tests.solver_models.partitions import (
    make_instance,
)


def test_seats_are_neighbours():
    """Tests that the stages of a class take its devices in the order listed."""
    instance = make_instance(4, (3, 2))
    stages = (Interval(0, 1, 0, 2), Interval(1, 2, 1, 1), Interval(2, 4, 0, 1))
    stage_of, groups = assign_devices(instance, stages)
    assert stage_of.tolist() == [0, 1, 2, 2]
    assert groups == ((0, 1), (10,), (2,))
