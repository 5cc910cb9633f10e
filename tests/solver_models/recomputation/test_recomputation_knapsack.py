"""Least recomputation that fits: tests of solver_models/recomputation/recomputation_knapsack.py."""

from itertools import product

import pytest

from solver_models.recomputation.alike_layers import AlikeLayers, Room
from solver_models.recomputation.recomputation_knapsack import least_kinds

KEPT, EXTRA = [10, 4, 1], [0, 3, 8]


def group(stage: int, count: int) -> AlikeLayers:
    """So many layers that keep all, some or little, the longer the less they keep."""
    return AlikeLayers(stage=stage, layers=list(range(count)), kinds=[0, 1, 2], extra=EXTRA, kept=KEPT)


def least_extra(count: int, units: int) -> int | None:
    """By trying everything: least extra ticks of one stage that holds one microbatch."""
    sums = [
        sum(EXTRA[kind] for kind in kinds)
        for kinds in product(range(3), repeat=count)
        if sum(KEPT[kind] for kind in kinds) <= units
    ]
    return min(sums, default=None)


@pytest.mark.parametrize("units", [30, 29, 18, 12, 9, 3, 2])
def test_the_least_of_all_choices_is_found(units: int):
    """Tests that three layers choose as well as the best of all choices, down to where nothing fits."""
    found = least_kinds([group(0, 3)], [Room(held=((0, 1),), units=units)], shares=[1], work=1.0, seed=0)
    expected = least_extra(3, units)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert sum(found[0]) == 3
        assert sum(number * extra for number, extra in zip(found[0], EXTRA, strict=True)) == expected


def test_replicas_divide_what_is_left():
    """Tests that two replicas hold half each, and that every moment must have room."""
    tight, rooms = Room(held=((0, 2),), units=19), [Room(held=((0, 2),), units=20)]
    assert least_kinds([group(0, 2)], rooms, shares=[2], work=1.0, seed=0) == [[2, 0, 0]]
    assert least_kinds([group(0, 2)], [*rooms, tight], shares=[2], work=1.0, seed=0) == [[1, 1, 0]]
