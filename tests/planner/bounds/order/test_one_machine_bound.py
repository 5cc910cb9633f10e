"""The one-machine bound: tests of planner/bounds/order/one_machine_bound.py."""

from itertools import permutations

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.order.one_machine_bound import OneMachineJobs, one_machine
from tests.long_runs import examples


@settings(max_examples=examples(60), deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=5))
def test_one_machine_is_below_every_sequence(jobs):
    """Tests that the one-machine bound is at most the best sequence of the jobs, and at least head + work + tail."""
    heads, times, tails = (numpy.array(column, dtype=numpy.int64) for column in zip(*jobs, strict=True))
    bound = one_machine(OneMachineJobs(heads=heads, times=times, tails=tails))
    assert bound <= min(_end(order) for order in permutations(jobs))
    assert bound >= min(heads) + sum(times) + min(tails)


def _end(order: tuple[tuple[int, int, int], ...]) -> int:
    now = result = 0
    for head, time, tail in order:
        now = max(now, head) + time
        result = max(result, now + tail)
    return result
