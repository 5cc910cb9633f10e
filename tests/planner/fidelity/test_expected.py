"""Averages that predict sums."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from planner.fidelity.expected import MOST, expected


def test_a_host_that_is_slow_for_a_tenth_of_the_time_counts():
    """Tests that a sum is predicted: half again as long for a tenth of the time is 5 % of it, which medians miss."""
    samples = [100] * 90 + [150] * 10
    assert expected(samples) == 105 > statistics.median(samples)


def test_what_stood_still_once_does_not():
    """Tests that one sample of a second among many of a microsecond hardly counts."""
    assert expected([10] * 99 + [10**9]) < 10.3


@given(st.lists(st.integers(0, 10**9), max_size=30))
def test_it_lies_between_the_least_and_three_medians(samples: list[int]):
    """Tests that no samples give 0, and others something from the least to the greatest, and to three medians."""
    found = expected(samples)
    assert min(samples, default=0) <= found <= max(samples, default=0)
    if samples and statistics.median(samples):
        assert found <= MOST * statistics.median(samples)
