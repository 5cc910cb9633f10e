"""Cuts into kinds of stages: within memory and units, and as good as all cuts that there are."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from random import Random

import numpy as np
import pytest

from solver_models.search_params import KindCutParams
from solver_models.starts.device_class_cuts import KindCut, StageKinds, kind_cuts

UNITS = (3, 4)


def make_kinds(rng: Random, size: int = 5) -> StageKinds:
    """Three kinds on two classes."""

    def rows(low: int, high: int) -> np.ndarray:
        values = np.array([[rng.randint(low, high) for _ in range(size)] for _ in range(3)], float)
        return np.concatenate((np.zeros((3, 1)), np.cumsum(values, axis=1)), axis=1)

    crossing = np.full((3, size + 1), float(rng.randint(0, 20)))
    crossing[:, [0, -1]] = 0
    return StageKinds(
        device_class=np.array([0, 1, 1]),
        units=np.array([1, 1, 2]),
        load=rows(50, 150),
        crossing=crossing,
        state=rows(1, 5),
        stash=rows(1, 5),
        room=np.array([float(rng.randint(20, 90)) for _ in range(3)]),
        sync=rows(0, 60),
        sync_least=np.array([float(rng.randint(0, 30)) for _ in range(3)]),
    )


def every_cut(kinds: StageKinds) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    size = kinds.load.shape[1] - 1
    for count in range(1, size + 1):
        for inner in combinations(range(1, size), count - 1):
            yield from ((((0, *inner, size)), chosen) for chosen in product(range(3), repeat=count))


def estimate(
    kinds: StageKinds, cut: tuple[tuple[int, ...], tuple[int, ...]], *, count: int, overlap: bool
) -> float | None:
    """Ticks of an iteration, or None where units or memory do not suffice."""
    used, busy, trips, syncs = Counter[int](), list[float](), 0.0, list[float]()
    for number, (kind, (a, b)) in enumerate(zip(cut[1], pairwise(cut[0]), strict=True)):
        used[int(kinds.device_class[kind])] += int(kinds.units[kind])
        held = min(len(cut[1]) - number, count)
        state, stash = (table[kind, b] - table[kind, a] for table in (kinds.state, kinds.stash))
        if state + held * stash > kinds.room[kind]:
            return None
        time = float(kinds.load[kind, b] - kinds.load[kind, a])
        before, behind = float(kinds.crossing[kind, a]), float(kinds.crossing[kind, b])
        busy.append(time if overlap else time + before + behind)
        trips += time + before
        syncs.append(float(kinds.sync[kind, b] - kinds.sync[kind, a] + kinds.sync_least[kind]))
    if any(used[number] > units for number, units in enumerate(UNITS)):
        return None
    return (count - 1) * max(busy) + trips + max(syncs)


@pytest.mark.parametrize("seed", range(12))
def test_cuts_against_all(seed):
    """Tests that estimates are right, nothing is overdrawn, and the best is within 10 % of the best of all cuts."""
    rng = Random(seed)
    kinds, count, overlap = make_kinds(rng), rng.choice((1, 4, 16)), bool(seed % 2)
    found = kind_cuts(
        kinds,
        class_units=UNITS,
        num_microbatches=count,
        overlap=overlap,
        known=np.inf,
        params=KindCutParams(limits=40, coarse=8.0, sync_factor=0.97, sync_steps=20),
    )
    values = [estimate(kinds, cut, count=count, overlap=overlap) for cut in every_cut(kinds)]
    possible = [value for value in values if value is not None]
    assert bool(found) == bool(possible)
    for cut in found:
        assert estimate(kinds, (cut.bounds, cut.kinds), count=count, overlap=overlap) == pytest.approx(cut.estimate)
    if found:
        assert found[0].estimate <= 1.1 * min(possible)
        assert found == sorted(found, key=lambda cut: cut.estimate)


def test_hopeless_ones_are_not_refined():
    """Tests that far above a known plan only the first limits are looked at."""
    kinds = make_kinds(Random(3))
    many, few = (
        kind_cuts(kinds, class_units=UNITS, num_microbatches=8, overlap=True, known=known, params=KindCutParams())
        for known in (np.inf, 1.0)
    )
    assert isinstance(few[0], KindCut)
    assert len(few) <= len(many)


def test_moves_lead_everywhere():
    """Tests that steps from one cut lead to cuts alone, and from step to step to all that there are."""
    kinds = make_kinds(Random(1), size=4)
    possible = {KindCut(bounds=bounds, kinds=chosen) for bounds, chosen in every_cut(kinds)}
    reached = waiting = {KindCut(bounds=(0, 4), kinds=(0,))}
    while waiting:
        waiting = {near for cut in waiting for near in cut.moves(3)} - reached
        reached = reached | waiting
    assert reached == possible
