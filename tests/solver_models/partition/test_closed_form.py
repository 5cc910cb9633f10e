"""Tests of solver_models/partition/closed_form.py."""

import itertools

import numpy as np

from solver_models.partition.closed_form import schedule_bound
from solver_models.partition.dynamic import Partitioner
from solver_models.partition.partition_instance import Interval
from tests.solver_models.partitions import (
    make_instance,
)


def test_shifting_cuts_by_bound():
    """Tests that cutting again by fill, work and drain equals enumeration on a plain chain."""
    work = np.full((1, 3, 1, 9), 10)
    work[0, 2] = 10
    instance = make_instance(9, (3,), work=work, gradient=np.zeros(9, np.int64), num_microbatches=2)
    own = Partitioner(instance)
    cuts = itertools.combinations(range(1, 9), 2)
    every = [tuple(Interval(a, b, 0, 1) for a, b in itertools.pairwise((0, *cut, 9))) for cut in cuts]
    least = min(schedule_bound(own, stages) for stages in every)
    balanced = tuple(Interval(a, a + 3, 0, 1) for a in (0, 3, 6))
    shifted = own.shift_cuts(balanced, radius=9, within=schedule_bound(own, balanced), tolerance=0)
    assert schedule_bound(own, shifted) == least
    assert own.shift_cuts(balanced, radius=0, within=10**6, tolerance=0) == balanced


def test_schedule_bound_adds_up():
    """Tests that the closed form is fill + F and I + drain, or the round trips that memory allows, on two stages."""
    work = np.array([[[[2, 5]], [[3, 7]], [[7, 8]]]])
    ticks = np.array([[0, 10, 0], [0, 20, 0]])
    plain = {"gradient": np.zeros(2, np.int64), "cut_ticks": ticks, "workspace": np.zeros(2, np.int64)}
    stages = (Interval(0, 1, 0, 1), Interval(1, 2, 0, 1))
    instance = make_instance(2, (2,), work=work, num_microbatches=10, **plain)
    second = (2 + 10) + 10 * (5 + 7) + (20 + 3) + (7 - 3)
    assert schedule_bound(Partitioner(instance), stages) == second
    one_fits = {"state": np.array([0, 0]), "stash": np.array([9, 0]), "capacity": np.array([9])}
    tight = make_instance(2, (2,), work=work, num_microbatches=10, **plain, **one_fits)
    assert schedule_bound(Partitioner(tight), stages) == 10 * (2 + 10 + 5 + 7 + 20 + 3) + (7 - 3)
    none_fits = tight._replace(capacity=np.array([8]))
    assert schedule_bound(Partitioner(none_fits), stages) is None
