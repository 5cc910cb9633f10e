"""Tests of solver_models/partition/partition_instance.py."""

import numpy as np
import pytest

from planner.layout.costs import CostModel
from planner.lowering import make_instance as lower
from solver_models.partition.dynamic import Partitioner
from solver_models.partition.partition_instance import Interval, as_if_sharding, assign_devices
from solver_models.simulation.columns import STATE_ROW
from tests.planner.builders import make_link, make_problem
from tests.planner.layout.test_gathers import stepping
from tests.solver_models.partitions import (
    is_feasible,
    make_instance,
)

WORK = np.array([[[[2, 3, 4]], [[1, 1, 1]], [[3, 2, 5]]]])
"""Three layers, F 2 3 4, I 1 1 1, whole backward 3 2 5."""


def test_load_adds_up():
    """Tests that the load of a stage is F and the whole backward, per replica and rounded up kind by kind."""
    assert Partitioner(make_instance(3, (1,), work=WORK)).load(Interval(0, 2, 0, 1)) == (2 + 3) + (3 + 2)
    pair = make_instance(3, (2,), work=WORK, gradient=np.zeros(3, np.int64))
    assert Partitioner(pair).load(Interval(0, 2, 0, 2)) == 3 + 3


def test_load_has_the_all_reduce():
    """Tests that a replicated stage carries its ring all-reduce, spread over the microbatches."""
    ring = np.array([[[0, 1], [0, 1], [7, 10**9]]])
    pair = make_instance(3, (2,), work=0 * WORK, gradient=np.array([100, 50, 0]), ring=ring)
    assert Partitioner(pair).load(Interval(0, 2, 0, 2)) == -(-(2 * 150 // 2 + 2 * 7) // 8)
    assert Partitioner(pair).load(Interval(2, 3, 0, 2)) == 0


def test_load_is_that_of_the_link_if_it_is_slower():
    """Tests that the transfer over the first cut of a stage counts, per replica, forward or backward."""
    ticks = np.array([[0, 40, 0, 0], [0, 60, 0, 0]])
    pair = make_instance(3, (2,), work=WORK, gradient=np.zeros(3, np.int64), cut_ticks=ticks)
    assert [Partitioner(pair).load(Interval(1, 3, 0, r)) for r in (1, 2)] == [60, 30]


@pytest.mark.parametrize(
    ("capacity", "changes"),
    [
        (9 + 8 + 7, {}),
        (9 + 4 + 7, {"replicas": 2}),
        (9 + 8 + 7 + 6, {"cut_units": np.array([[0, 6, 0, 0], [0, 0, 0, 0]])}),
        (9 + 8 + 7 + 5, {"cut_units": np.array([[0, 0, 0, 0], [0, 0, 5, 0]])}),
    ],
    ids=["one", "replicas", "activations", "gradients"],
)
def test_memory_adds_up(capacity: int, changes: dict[str, object]):
    """Tests that state, stashes in flight, the largest workspace and receive buffers must fit, to the unit."""
    replicas = int(changes.pop("replicas", 1))
    fields = {"state": np.array([1, 9, 1]), "stash": np.array([1, 8, 1]), "workspace": np.array([0, 7, 0])} | changes
    stages = (Interval(0, 1, 0, 1), Interval(1, 2, 0, replicas), Interval(2, 3, 0, 1))
    for slack in (0, -1):
        own = make_instance(3, (4,), capacity=np.array([capacity + slack]), **fields)
        assert is_feasible(Partitioner(own), stages) == (slack == 0)


def test_feasible_means_covered_and_seated():
    """Tests that partitions with gaps, missing ends or too many devices are refused."""
    own = Partitioner(make_instance(3, (2,)))
    assert is_feasible(own, (Interval(0, 1, 0, 1), Interval(1, 3, 0, 1)))
    assert not is_feasible(own, (Interval(0, 1, 0, 1), Interval(2, 3, 0, 1)))
    assert not is_feasible(own, (Interval(0, 2, 0, 1),))
    assert not is_feasible(own, (Interval(0, 1, 0, 2), Interval(1, 3, 0, 1)))


def test_a_partition_is_sought_for_the_memory_of_replicas_that_shard():
    """Tests that two replicas are taken to hold half of the optimizer's state, rounded up, and all of the rest."""
    problem = make_problem([stepping("x", 0)], [make_link("a b")], shard_optimizer="allow")
    instance = lower(problem, CostModel(problem))
    states = [each.sizes[STATE_ROW].tolist() for each in (instance, as_if_sharding(instance))]
    assert states == [[40], [40 - 25 + 13]]


def test_seats_are_neighbours():
    """Tests that the stages of a class take its devices in the order listed."""
    instance = make_instance(4, (3, 2))
    stages = (Interval(0, 1, 0, 2), Interval(1, 2, 1, 1), Interval(2, 4, 0, 1))
    stage_of, groups = assign_devices(instance, stages)
    assert stage_of.tolist() == [0, 1, 2, 2]
    assert groups == ((0, 1), (10,), (2,))
