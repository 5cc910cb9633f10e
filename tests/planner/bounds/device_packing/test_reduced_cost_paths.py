"""Tests of planner/bounds/device_packing/reduced_cost_paths.py."""

import numpy
from hypothesis import given
from hypothesis import strategies as st

from planner.bounds.device_packing.device_loads import DeviceLoads
from planner.bounds.device_packing.reduced_cost_paths import Priced, RoundedClock, share_reduced_cost


@given(st.randoms(use_true_random=False))
def test_waste_is_shared_out(rng):
    """Tests that stages are charged no more than the waste of any load, and none less than half of its least."""
    count, num_stages = rng.randint(1, 30), rng.randint(2, 8)
    first = numpy.array([rng.randrange(num_stages - 1) for _ in range(count)])
    second = numpy.array([rng.choice((-1, rng.randint(k + 1, num_stages - 1))) for k in first.tolist()])
    zeros = numpy.zeros(count, numpy.int64)
    loads = DeviceLoads(
        first=first, second=second, first_latest=zeros, second_latest=zeros, follows=zeros > 0, kind=zeros, room=zeros
    )
    waste = numpy.array([rng.randint(0, 100) for _ in range(count)])
    least, (of_first, of_second) = share_reduced_cost(
        Priced(loads=loads, reduced_cost=waste, slack=0), num_stages=num_stages
    )
    pairs = second >= 0
    assert (of_first + of_second == waste).all()
    assert (least[first] <= of_first).all()
    assert (least[second[pairs]] <= of_second[pairs]).all()
    assert (least[first[~pairs]] <= waste[~pairs]).all()
    for stage in set(first.tolist()) | set(second[pairs].tolist()):
        own = [w // 2 if j >= 0 else w for k, j, w in zip(first, second, waste, strict=True) if stage in (k, j)]
        assert least[stage] >= min(own) >= 0


def test_two_stages_that_share_one_friend():
    """Tests that of two stages which only go well with the same third one, either causes waste."""
    first, second = numpy.array([0, 0, 1, 0, 1, 2]), numpy.array([2, 1, 2, -1, -1, -1])
    zeros = numpy.zeros(6, numpy.int64)
    loads = DeviceLoads(
        first=first, second=second, first_latest=zeros, second_latest=zeros, follows=zeros > 0, kind=zeros, room=zeros
    )
    waste = numpy.array([0, 80, 20, 90, 90, 90])
    least, _ = share_reduced_cost(Priced(loads=loads, reduced_cost=waste, slack=100), num_stages=3)
    assert least.tolist() == [0, 19, 0]


@given(st.integers(1, 10**15), st.lists(st.integers(0, 10**15), min_size=1, max_size=9))
def test_fine_steps_are_parts_of_coarse_ones(most, stages):
    """Tests that no time begins after itself, and that what stages take adds up to as many coarse steps at least."""
    times = numpy.array(stages)
    fine, coarse = RoundedClock(most, slots=1), RoundedClock(most, slots=10**6)
    for clock in (fine, coarse):
        numbers = clock.numbers(times)
        assert (clock.times(numbers) <= times).all()
        assert clock.times(numbers.sum()) <= times.sum()
        assert (clock.last(times) == numpy.minimum(numbers, clock.size - 1)).all()
    factor = fine.size // coarse.size
    assert (fine.numbers(times) // factor == coarse.numbers(times)).all()
    assert fine.numbers(times).sum() // factor >= coarse.numbers(times).sum()


def test_short_stages_add_up():
    """Tests that six stages a little shorter than a coarse step of 10 take more than nothing on few slots."""
    stages = numpy.full(6, 9)
    lengths = [int(clock.times(clock.numbers(stages).sum())) for clock in (
        RoundedClock(640, slots=8), RoundedClock(640, slots=1000)
    )]  # fmt: skip
    assert lengths == [45, 0]
