"""Intervals of layers to stages to devices, by dynamic programming."""

from solver_models.partition.candidates import candidates
from solver_models.partition.device_assignment import assign_devices
from solver_models.partition.partition_instance import Interval, PartitionInstance, make_partition_instance

__all__ = [
    "Interval",
    "PartitionInstance",
    "assign_devices",
    "candidates",
    "make_partition_instance",
]
