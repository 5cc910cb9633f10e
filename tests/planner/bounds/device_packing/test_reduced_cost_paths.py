"""Tests of planner/bounds/device_packing/reduced_cost_paths.py."""

import numpy
from hypothesis import given
from hypothesis import strategies as st

from planner.bounds.device_packing.device_loads import DeviceLoads
from planner.bounds.device_packing.reduced_cost_paths import Priced, share_reduced_cost


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
