"""Cuts for groups in a given order: none for like groups has a smaller largest load, and all stages fit into memory."""

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from solver_models.starts.cuts import StageGroups, Sums, best_cut

STEPS = 40


def random_sums(rng: Random, num_layers: int) -> Sums:
    """Layers of two device types; nothing crosses."""

    def prefix(most: int) -> np.ndarray:
        return np.cumsum([0, *(rng.randint(1, most) for _ in range(num_layers))])

    load = np.stack((prefix(20), prefix(40)))
    return Sums(load, load, load, prefix(5), prefix(5), np.zeros(num_layers + 1, np.int64))


def random_seats(rng: Random, num_groups: int) -> StageGroups:
    """Like groups of one to three devices, some with little memory, but enough for any one layer."""
    columns = [[rng.randint(0, 1)] * num_groups, [rng.randint(1, 3)] * num_groups]
    columns += [[rng.choice((20, 30, 1000)) for _ in range(num_groups)], [rng.randint(1, 3)] * num_groups]
    return StageGroups(*(np.array(column) for column in columns), 0)


def loads_of(sums: Sums, seats: StageGroups, bounds: tuple[int, ...]) -> list[float] | None:
    """The load of every stage per device; None if one does not fit."""
    loads = []
    for g, (first, end) in enumerate(pairwise(bounds)):
        size = int(seats.size[g])
        stash = -(-int(sums.stash[end] - sums.stash[first]) // size)
        if sums.state[end] - sums.state[first] + seats.held[g] * stash > seats.room[g]:
            return None
        loads.append(int(sums.load[seats.kind[g], end] - sums.load[seats.kind[g], first]) / size)
    return loads


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_has_a_smaller_largest_load(seed: int):
    """Tests that halving finds the least largest load of all cuts for like groups, or none where none fits."""
    rng = Random(seed)
    num_layers, num_groups = rng.randint(1, 7), rng.randint(1, 4)
    sums, seats = random_sums(rng, num_layers), random_seats(rng, num_groups)
    cuts = (
        (0, *inner, num_layers)
        for count in range(min(num_groups, num_layers))
        for inner in combinations(range(1, num_layers), count)
    )
    least = min((max(loads) for cut in cuts if (loads := loads_of(sums, seats, cut)) is not None), default=None)
    found = tuple(best_cut(sums, seats, 0.0, STEPS).tolist())
    if least is None:
        assert found == ()
        return
    loads = loads_of(sums, seats, found)
    assert found[0] == 0
    assert found[-1] == num_layers
    assert loads is not None
    assert max(loads) < least + 1  # limits are integers
    assert num_groups > 1 or max(loads) == least


def test_a_stage_ends_where_less_crosses():
    """Tests that with slack a stage gives up layers for a smaller transfer, and without it does not."""
    prefix = np.arange(11) * 10
    crossing = np.array([0, 9, 9, 9, 1, 9, 9, 9, 9, 9, 0])
    sums = Sums(prefix[None], prefix[None], prefix[None], 0 * prefix, 0 * prefix, crossing)
    ones = np.ones(2, np.int64)
    seats = StageGroups(0 * ones, ones, 10**6 * ones, ones, 0)
    assert best_cut(sums, seats, 0.0, STEPS).tolist() == [0, 5, 10]
    assert best_cut(sums, seats, 0.5, STEPS).tolist()[1] == 4
