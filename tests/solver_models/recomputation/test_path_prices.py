"""Prices at which the cheapest paths say most."""

import math

import numpy as np
import pytest

from planner.bounds.order.device_paths import ReplicaMemory, make_graph
from planner.bounds.order.priced_rows import path_arrays
from planner.bounds.order.time_indexed_bound import ReplicaPaths
from solver_models.recomputation.path_prices import PathPrices

CELLS = 12


def prices(count: int) -> PathPrices:
    """One stage, F and I of two cells each, room for one."""
    memory = ReplicaMemory(room=1, held=(1, 1), during=(0, 0), waiting=0)
    graph = make_graph(memory, (2, 2, 2, 3, 0), count=count)
    assert graph is not None
    columns = tuple(range(kind * (CELLS + 1), (kind + 1) * (CELLS + 1)) for kind in range(5))
    paths = [ReplicaPaths(graph=graph, columns=columns, owner=0, windows=((0, CELLS),) * 5)]
    # all I of both kinds, the third and the fourth, have begun in the end; the others follow from paths
    ends = np.array([2 * (CELLS + 1) + CELLS - 1, 3 * (CELLS + 1) + CELLS - 1])
    rows = np.array([0, 2]), ends, -np.ones(2), np.array([-float(count)]), np.array([True])
    return PathPrices(rows, paths=path_arrays(paths), shape=(CELLS, 5 * (CELLS + 1)))


@pytest.mark.parametrize(("count", "missed"), [(2, -1), (3, 0), (5, 2)])
def test_what_does_not_fit_is_missed(count: int, missed: int):
    """Tests that twelve cells hold three microbatches of four cells."""
    found = prices(count)
    assert found.start().tolist() == [1.0]
    assert found.value(found.start()) == missed


def test_prices_of_ends_keep_their_sum():
    """Tests that steps leave prices from 0 on, and end when there is no time."""
    found = prices(3)
    better = found.improve(found.start(), steps=40, is_warm=False, num_points=CELLS, seconds_left=lambda: math.inf)
    assert better.tolist() == pytest.approx([1.0])
    same = found.improve(found.start(), steps=40, is_warm=True, num_points=CELLS, seconds_left=lambda: 0.0)
    assert same.tolist() == [1.0]
