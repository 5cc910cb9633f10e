"""The dynamic programmes and the closed form against enumeration."""

import numpy as np
import pytest

from solver_models.partition.dynamic import Partitioner
from solver_models.partition.partition_instance import PartitionInstance
from tests.solver_models.partitions import (
    every_partition,
    is_feasible,
    least_largest_load,
    least_load,
    make_instance,
    with_transfers,
)


def cases() -> list[PartitionInstance]:
    """Small instances of every kind."""
    found = []
    for seed in range(6):
        found.append(make_instance(5, (3,), seed=seed))
        found.append(make_instance(5, (2, 1), seed=seed))
        found.append(make_instance(4, (1, 1, 1), seed=seed))
        ticks = {"cut_ticks": with_transfers(5, seed=seed)["cut_ticks"]}
        found.append(make_instance(5, (2, 1), seed=seed, **ticks))
        tight = {"capacity": np.array([55])}
        found.append(make_instance(6, (4,), seed=seed, **tight))
    return found


@pytest.mark.parametrize("number", range(30))
def test_least_largest_load_equals_enumeration(number: int):
    """Tests that the programme over used devices finds the least largest load of all partitions that fit."""
    instance = cases()[number]
    stages = least_largest_load(Partitioner(instance))
    best = least_load(instance)
    assert (stages is None) == (best is None)
    if stages is not None:
        assert is_feasible(Partitioner(instance), stages)
        assert Partitioner(instance).largest_load(stages) == best >= Partitioner(instance).lower_bound()


@pytest.mark.parametrize("number", range(30))
def test_given_order_equals_enumeration(number: int):
    """Tests that the programme for a given order of devices finds the least largest load of that order."""
    instance = cases()[number]
    own = Partitioner(instance)
    order = [(c, 1) for c, count in enumerate(instance.class_sizes.tolist()) for _ in range(count)]
    partitions = [s for s in every_partition(instance) if is_feasible(own, s)]
    seats = [(s, [(stage.device_class, stage.replicas) for stage in s]) for s in partitions]
    most = min((own.largest_load(s) for s, used in seats if is_part_of(used, order)), default=None)
    found = own.least_load_in_order(order)
    assert (found and own.largest_load(found)) == most


def is_part_of(some: list[tuple[int, int]], order: list[tuple[int, int]]) -> bool:
    """Whether `some` is `order` with entries left out."""
    rest = iter(order)
    return all(entry in rest for entry in some)
