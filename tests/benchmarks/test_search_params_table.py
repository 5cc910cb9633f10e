"""The table of parameters: what is halved and doubled, and how outcomes are compared."""

import pytest

from benchmarks.search_params import GROUPS, Outcome, changes, ratios, scaled, spread


def test_values_are_scaled():
    """Tests that whole numbers stay whole and positive, and that lists are scaled number by number."""
    assert scaled(12, 0.5) == 6
    assert scaled(1, 0.5) == 1
    assert scaled(0.7, 2.0) == pytest.approx(1.4)
    assert scaled([[0.5, 4]], 2.0) == [[1.0, 8]]


def test_changes_are_possible_ones():
    """Tests that every change is of a group that the joint search reads, and within its range."""
    found = list(changes())
    assert {name.partition(".")[0] for name, _, _ in found} == set(GROUPS)
    assert ("multistart.pool_size", 24, 12) in found
    assert ("multistart.rank_weight", 0.35, 0.7) in found
    assert all(name != "multistart.rank_weight" or value == 0.35 for name, value, _ in found)


def test_outcomes_are_compared_pair_by_pair():
    """Tests that ratios are those of the same problem and seed, and that equal seeds have no spread."""
    usual, other = Outcome(objectives=[100, 200], cpu_s=1.0), Outcome(objectives=[110, 190], cpu_s=2.0)
    assert ratios(other, usual) == [1.1, 0.95]
    assert spread(Outcome(objectives=[100, 100, 7, 7], cpu_s=1.0), 2) == 0
    assert spread(Outcome(objectives=[90, 110], cpu_s=1.0), 2) == pytest.approx(100 * 0.1 / 2**0.5)
