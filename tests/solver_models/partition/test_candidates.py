"""Tests of solver_models/partition/candidates.py."""

import numpy as np
import pytest

from solver_models.partition.candidates import candidates
from solver_models.partition.closed_form import schedule_bound
from solver_models.partition.dynamic import Partitioner
from tests.solver_models.partitions import (
    is_feasible,
    least_largest_load,
    make_instance,
)


@pytest.mark.parametrize(("counts", "uneven"), [((4,), True), ((4,), False), ((2, 2), True), ((1,) * 5, True)])
def test_candidates_are_different_and_fit(counts: tuple[int, ...], uneven: bool):
    """Tests that candidates are distinct, feasible and sorted, and that the least largest load is among them."""
    instance = make_instance(24, counts, capacity=np.full(len(counts), 250))
    own = Partitioner(instance)
    found = candidates(instance, limit=30, uneven=uneven)
    bounds = [schedule_bound(own, stages) for stages in found]
    assert len(set(found)) == len(found) >= 3
    assert all(is_feasible(own, stages) for stages in found)
    assert bounds == sorted(bounds)
    if uneven:
        least = own.largest_load(least_largest_load(own))
        assert min(own.largest_load(stages) for stages in found) <= 1.003 * least
    else:
        assert all(len({stage.replicas for stage in stages}) == 1 for stages in found)


def test_candidates_when_nothing_fits():
    """Tests that there are no candidates if no device can hold a layer."""
    assert candidates(make_instance(5, (3,), capacity=np.array([0])), limit=5) == []
