"""The programme that shares samples, against all ways to share them."""

from itertools import product
from random import Random

import pytest

from solver_models.sample_shares import shortest_shares


def longest(times: list[list[int | None]], samples: tuple[int, ...]) -> int | None:
    """The longest time of so many samples; None if one of them is not allowed."""
    found = [row[count] if count < len(row) else None for row, count in zip(times, samples, strict=True)]
    return None if None in found else max(time for time in found if time is not None)


def test_the_faster_replica_gets_more():
    """Tests that of two replicas the one that is three times as fast gets three of four samples."""
    assert shortest_shares([[None, 1, 2, 3, 4], [None, 3, 6, 9, 12]], total=4) == (3, 1)


def test_nothing_may_be_allowed():
    """Tests that without numbers that add up there is no answer."""
    assert shortest_shares([[None, 1], [None, None]], total=2) is None
    assert shortest_shares([[None, 1], [None, 1]], total=3) is None
    assert shortest_shares([], total=1) is None


@pytest.mark.parametrize("seed", range(60))
def test_no_other_shares_are_shorter(seed: int):
    """Tests that the longest time is the least of all, whether times grow or not, and some are not allowed."""
    rng = Random(seed)
    total = rng.randint(1, 6)
    times: list[list[int | None]] = [
        [rng.choice([None, rng.randint(0, 9), rng.randint(0, 9)]) for _ in range(total + 1)]
        for _ in range(rng.randint(1, 4))
    ]
    ways = [way for way in product(range(total + 1), repeat=len(times)) if sum(way) == total]
    best = min((time for way in ways if (time := longest(times, way)) is not None), default=None)
    found = shortest_shares(times, total=total)
    assert (found is None) == (best is None)
    if found is not None:
        assert sum(found) == total
        assert longest(times, found) == best
