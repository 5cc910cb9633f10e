"""Tests of planner/bounds/listed/pack_prices.py."""

import random

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.listed import pack_prices
from planner.bounds.listed.pack_order import Reals
from planner.bounds.listed.pack_prices import bound_by_prices
from planner.bounds.listed.packed_sequences import bound_packs, fewest_packs
from tests.long_runs import examples
from tests.planner.packing.every_packing import ListedTimes, best_packing


@st.composite
def questions(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int, list[ListedTimes], int]:
    """Few sequences, some equal, on stages that are alike or not."""
    pipelines, cap = draw(st.integers(1, 3)), draw(st.integers(4, 8))
    lengths = tuple(draw(st.lists(st.integers(1, cap), min_size=pipelines, max_size=5)))
    stages = []
    alike = draw(st.booleans())
    times = [(draw(st.integers(1, 12)), draw(st.integers(1, 24))) for _ in range(8)]
    for _ in range(draw(st.integers(2, 4))):
        own = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        factor = draw(st.integers(1, 3))
        other = [(draw(st.integers(1, 12)), draw(st.integers(1, 24))) for _ in range(8)]
        listed = [(factor * ahead, factor * back) for ahead, back in times] if alike else other
        stages.append(ListedTimes(times=tuple(listed), own=own))
    return lengths, pipelines, cap, stages, draw(st.integers(0, 2))


@settings(max_examples=examples(150), deadline=None)
@given(asked=questions(), part=st.sampled_from([0.9, 1.0]))
def test_no_packing_ends_before(asked: tuple[tuple[int, ...], int, int, list[ListedTimes], int], part: float):
    """Tests that the bound is at most the best of all packings, from whatever it starts."""
    lengths, pipelines, cap, stages, transfer_ns = asked
    best, _ = best_packing(lengths, pipelines, cap=cap, stages=stages, transfer_ns=transfer_ns)
    if best is None:
        return
    forward, backward = (
        numpy.array([[stage.times[length - 1][direction] for stage in stages] for length in lengths])
        for direction in (0, 1)
    )
    own = numpy.array([stage.of_pack for stage in stages]).T
    packs = max(pipelines, fewest_packs(lengths, cap))
    known = bound_packs(forward, backward, own=own, num_packs=packs, pipelines=pipelines, transfer_ns=transfer_ns)
    bound = bound_by_prices(
        forward,
        backward,
        own=own,
        packs=(-(-packs // pipelines), len(lengths) // pipelines),
        pipelines=pipelines,
        hop=2 * transfer_ns,
        time=int(part * known),
    )
    assert part * known - 1 <= bound <= best


def test_prices_see_that_several_long_sequences_wait():
    """Tests that where long sequences are several, the bound is higher than without prices."""
    rng = random.Random(8)
    first = numpy.array([int(100 * rng.lognormvariate(0, 1)) + 10 for _ in range(300)])
    forward = numpy.repeat(numpy.minimum(first, 400)[:, None], 8, axis=1)
    own = numpy.zeros((2, 8), dtype=numpy.int64)
    known = bound_packs(forward, 2 * forward, own=own, num_packs=40, pipelines=5)
    bound = bound_by_prices(forward, 2 * forward, own=own, packs=(8, 60), pipelines=5, hop=0, time=known)
    assert bound > 1.003 * known


def test_both_parts_of_the_idle_time_count():
    """Tests that few long sequences among many short ones raise the bound by 11 %; their sum alone says 9."""
    rng = random.Random(2)
    first = [rng.randint(9000, 15000) if rng.random() < 0.125 else rng.randint(450, 750) for _ in range(512)]
    forward = numpy.repeat(numpy.array(first)[:, None], 8, axis=1)
    own = numpy.zeros((2, 8), dtype=numpy.int64)
    known = bound_packs(forward, 2 * forward, own=own, num_packs=80, pipelines=8)
    bound = bound_by_prices(forward, 2 * forward, own=own, packs=(10, 64), pipelines=8, hop=0, time=known)
    assert bound > 1.11 * known


def test_what_is_refuted_once_stays_so(monkeypatch: pytest.MonkeyPatch):
    """Tests that no time that prices have refuted is given up where others are tried for an earlier one."""
    refuted, find_held = list[float](), pack_prices._held

    def held(rooms: pack_prices._Rooms | None, prices: Reals, *, time: float) -> tuple[Reals, float]:
        found, rate = find_held(rooms, prices, time=time)
        refuted.extend([time] if (prices * found).sum() < 1 - 1e-6 else [])
        return found, rate

    monkeypatch.setattr(pack_prices, "_held", held)
    first = numpy.array([10] * 4 + [100] * 11 + [1000] * 9)
    forward, own = numpy.repeat(first[:, None], 3, axis=1), numpy.zeros((2, 3), dtype=numpy.int64)
    bound = bound_by_prices(forward, 2 * forward, own=own, packs=(1, 8), pipelines=3, hop=0, time=12_160)
    assert max(refuted) > 12_160
    assert bound >= int(max(refuted))


def test_without_a_stage_behind_or_without_times_what_is_known_stays():
    """Tests that one stage, and sequences that take no time, leave the known bound."""
    for forward in (numpy.array([[3], [4]]), numpy.array([[0, 1], [2, 2]])):
        own = numpy.zeros((2, forward.shape[1]), dtype=numpy.int64)
        assert bound_by_prices(forward, forward, own=own, packs=(1, 2), pipelines=1, hop=0, time=7) == 7
