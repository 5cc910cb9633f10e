"""Tests of planner/bounds/listed/pack_order.py."""

import random

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.listed.pack_order import PackFactors, forwards_per_idle, least_beside, least_sums
from planner.dealing import play_1f1b
from tests.long_runs import examples


def shaped(rng: random.Random, count: int) -> list[int]:
    """Packs in random order, or from short to long to short, which wait least."""
    sizes = [int(20 * rng.lognormvariate(0, 1)) + 1 for _ in range(count)]
    if rng.random() < 0.5:
        return sizes
    sizes.sort()
    cut = rng.randrange(count + 1)
    rising = sorted(rng.sample(range(count), cut))
    return [sizes[i] for i in rising] + [sizes[i] for i in reversed(range(count)) if i not in rising]


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 10**9), others=st.integers(1, 7), count=st.integers(1, 40))
def test_pipelines_wait_as_long_as_is_proved(seed: int, others: int, count: int):
    """Tests that s idle + shorter packs >= P for every level, and that forwards are at most as many as idle allows."""
    rng = random.Random(seed)
    hidden = rng.choice([1, 2, 3])
    sizes = shaped(rng, count)
    factors = PackFactors(up=float(others), down=float(hidden * others), hidden=float(hidden), others=others)
    forward, backward = ([[factor * size] * (others + 1) for size in sizes] for factor in (1, hidden))
    idle = play_1f1b(forward, backward) - (1 + hidden) * sum(sizes)
    assert sum(sizes) <= idle * forwards_per_idle(count, factors) * (1 + 1e-9)
    levels = sorted(set(sizes), reverse=True)
    sums, least = least_sums([float(level) for level in levels], shortest=float(min(sizes)), factors=factors, steps=20)
    for level, row in zip(levels, least.tolist(), strict=True):
        shorter = sum(size for size in sizes if size < level)
        assert all(s * idle + shorter >= bound - 1e-6 for s, bound in zip(sums.tolist(), row, strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 10**9), others=st.integers(1, 7), count=st.integers(1, 40))
def test_one_split_of_the_idle_time_holds_for_all_levels(seed: int, others: int, count: int):
    """Tests that before the first pack of the longest level, and behind it, all levels wait as long as is proved."""
    rng = random.Random(seed)
    hidden, sizes = rng.choice([1, 2, 3]), shaped(rng, count)
    forward, backward = ([[factor * size] * (others + 1) for size in sizes] for factor in (1, hidden))
    idle = play_1f1b(forward, backward) - (1 + hidden) * sum(sizes)
    levels = sorted(set(rng.sample(sizes, rng.randint(1, count))), reverse=True)
    first = next(place for place, size in enumerate(sizes) if size >= levels[0])
    waits = [others * sizes[i] - hidden * sum(sizes[max(0, i - others) : i]) for i in range(first + 1)]
    parts = (float(max(waits)), idle - float(max(waits)))
    longer = numpy.array(levels, dtype=float)
    for part, per, turned in ((parts[0], hidden, sizes), (parts[1], 1, sizes[::-1])):
        factor = float(others * hidden if turned is not sizes else others)
        least = least_beside(longer, numpy.array([part]), per=float(per), factor=factor, others=others)[:, 0]
        for level, bound in zip(levels, least.tolist(), strict=True):
            reached = next(place for place, size in enumerate(turned) if size >= level)
            assert sum(turned[:reached]) >= bound - 1e-6


def test_one_pack_waits_for_its_way():
    """Tests that the bound is exact for a single pack, and for equal ones."""
    factors = PackFactors(up=3.0, down=6.0, hidden=2.0, others=3)
    sums, least = least_sums([10.0], shortest=10.0, factors=factors, steps=20)
    assert max(least[0] / sums) == pytest.approx(90)
    assert forwards_per_idle(1, factors) == pytest.approx(1 / 6)


def test_a_part_of_each_way_counts():
    """Tests that a long pack alone among others waits for its whole way, whichever way shorter packs hide.

    With n = 3 and b = 2 f it waits for 3 z on its way up and 6 z down, less 2 f of packs before and f of those behind
    it. Half of both is the same trade for either: shorter packs hold 4.5 z less half of the idle time.
    """
    factors = PackFactors(up=3.0, down=6.0, hidden=2.0, others=3)
    sums, least = least_sums([10.0], shortest=1e-9, factors=factors, steps=20)
    half = sums.tolist().index(0.5)
    assert least[0, half] == pytest.approx(45)
    assert min(idle + 3 * max(0.0, *(least[0] - idle * sums)) for idle in range(150)) == pytest.approx(90)
