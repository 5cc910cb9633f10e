"""Tests of planner/packing/pack_shapes.py."""

import itertools
import random

import numpy
import pytest

from planner.packing.pack_shapes import fill_shapes, play_shapes, shape_pipelines, shift_work

THIRDS = {"forward": [1 / 3] * 4, "backward": [2 / 3] * 4}


def test_shapes_have_the_longest_pack_once_at_least_and_wait_for_it():
    """Tests that no shape ends before its work and the longest pack's way, and that good ones wait for little more."""
    shapes = play_shapes(24, **THIRDS, least=0.02)
    assert shapes is not None
    assert shapes.sizes.shape[1] == 24
    assert (shapes.sizes.max(axis=1) == 1).all()
    idle = shapes.time - shapes.work
    assert idle.min() >= 1
    assert idle[shapes.work > 10].min() < 1.4


def test_backwards_that_are_shorter_turn_shapes_round():
    """Tests that what is quick with long backwards is quick the other way round with long forwards."""
    ahead, back = (
        play_shapes(16, **THIRDS, least=0.1),
        play_shapes(16, forward=THIRDS["backward"], backward=THIRDS["forward"], least=0.1),
    )
    assert ahead is not None
    assert back is not None
    assert numpy.allclose(ahead.sizes, back.sizes[:, ::-1])
    assert numpy.allclose(ahead.time, back.time, atol=1e-4)


def test_too_few_packs_have_no_shape_that_rises():
    """Tests that with one pack there is only the one that stands alone."""
    shapes = play_shapes(1, **THIRDS, least=0.5)
    assert shapes is not None
    assert shapes.sizes.tolist() == [[1.0]]


@pytest.mark.parametrize(("forward", "backward"), [(1 / 3, 2 / 3), (2 / 3, 1 / 3)])
@pytest.mark.parametrize("count", [1, 7, 12, 23, 24])
def test_shapes_of_fewer_packs_are_those_that_are_played_for_them(forward: float, backward: float, count: int):
    """Tests that shapes cut to fewer packs are those played with so many, and take the same time."""
    question = {"forward": [forward] * 4, "backward": [backward] * 4, "least": 0.02}
    every, alone = play_shapes(24, **question), play_shapes(count, **question)
    assert every is not None
    assert alone is not None
    (cut,) = every.of([count])
    assert cut.sizes.shape == alone.sizes.shape
    assert [sorted(row) for row in cut.sizes.tolist()] == [sorted(row) for row in alone.sizes.tolist()]
    assert cut.work.tolist() == pytest.approx(alone.work.tolist())
    assert cut.time.tolist() == alone.time.tolist()


def test_pipelines_share_all_work():
    """Tests that shapes hold all work, and that the first pipeline takes one of the longest."""
    shapes = play_shapes(12, **THIRDS, least=0.01)
    assert shapes is not None
    work = [900] * 3 + [100] * 90 + [20] * 40
    sizes = shape_pipelines(work, 3, shapes=shapes)
    assert sizes.shape == (3, 12)
    assert sizes.sum() == pytest.approx(sum(work))
    assert (sizes[0] > 0.9 * sizes[0].max()).sum() == 1


def test_work_is_shifted_from_short_packs():
    """Tests that a pipeline gets so much more or less, long packs nearly none of it."""
    sizes = numpy.array([[10.0, 100.0, 10.0], [50.0, 50.0, 50.0]])
    moved = shift_work(sizes, numpy.array([-6.0, 6.0]))
    assert moved.sum(axis=1).tolist() == pytest.approx([114, 156])
    assert 96 < moved[0, 1] < 100


@pytest.mark.parametrize("seed", range(40))
def test_filled_packs_hold_every_sequence_once(seed: int):
    """Tests that packs hold all sequences, each has one, none has more tokens than the cap, or that none are found."""
    rng = random.Random(seed)
    pipelines, count, cap = rng.randint(1, 3), rng.randint(1, 5), 20
    lengths = sorted((rng.randint(1, cap) for _ in range(rng.randint(1, 40))), reverse=True)
    sizes = numpy.array([[rng.choice([0.0, 30.0, 200.0]) for _ in range(count)] for _ in range(pipelines)])
    found = fill_shapes(lengths, [length**2 for length in lengths], sizes=sizes, cap=cap)
    if found is None:
        assert len(lengths) < pipelines * count or sum(lengths) > 0.5 * cap * pipelines * count
        return
    packs = [pack for each in found for pack in each]
    assert [len(each) for each in found] == [count] * pipelines
    assert sorted(itertools.chain(*packs)) == list(range(len(lengths)))
    assert all(pack and sum(lengths[i] for i in pack) <= cap for pack in packs)
