"""Tests of planner/bounds/listed/packed_sequences.py."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.listed.packed_sequences import fewest_packs
from planner.packing.pack_sequences import pack
from tests.long_runs import examples
from tests.planner.packing.every_packing import ListedTimes, best_packing, play_alone

TIME = st.integers(0, 12)


@st.composite
def questions(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int, list[ListedTimes], int]:
    pipelines, cap = draw(st.integers(1, 2)), draw(st.integers(4, 8))
    lengths = tuple(draw(st.lists(st.integers(1, cap), min_size=pipelines, max_size=5)))
    factors = draw(st.sampled_from([None, (1, 2), (2, 6), (3, 2)]))
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        own = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        if factors is None:
            times = [draw(st.tuples(TIME, TIME)) for _ in range(8)]
        else:
            times = [
                (factors[0] * (8 * size + size * size), factors[1] * (8 * size + size * size)) for size in range(1, 9)
            ]
        stages.append(ListedTimes(times=tuple(times), own=own))
    return lengths, pipelines, cap, stages, draw(st.integers(0, 2))


@settings(max_examples=examples(60), deadline=None)
@given(asked=questions())
def test_bounds_are_below_the_best_of_all_packings(asked: tuple[tuple[int, ...], int, int, list[ListedTimes], int]):
    """Tests that bound <= best of all packings, dealings and orders <= what is found, and how many packs there are."""
    lengths, pipelines, cap, stages, transfer_ns = asked
    best, fewest = best_packing(lengths, pipelines, cap=cap, stages=stages, transfer_ns=transfer_ns)
    assert fewest_packs(lengths, cap) <= fewest
    if best is None:
        with pytest.raises(ValueError, match="run equally many"):
            pack(lengths, pipelines, cap=cap, stages=stages, transfer_ns=transfer_ns)
        return
    found = pack(lengths, pipelines, cap=cap, stages=stages, transfer_ns=transfer_ns)
    assert found.lower_bound_ns <= best <= found.largest_ns
    assert found.in_order_ns is None or found.largest_ns <= found.in_order_ns
    assert sorted(itertools.chain(*found.packs)) == list(range(len(lengths)))
    played = [
        play_alone([[lengths[i] for i in each] for each in found.of_pipeline(rank)], stages, transfer_ns=transfer_ns)
        for rank in range(pipelines)
    ]
    assert max(played) == found.largest_ns
