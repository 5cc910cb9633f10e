"""Packs for the loaders of trainers."""

import itertools
import random

import numpy
import pytest

from planner.packing.loaders import PackedBatches, Packer
from planner.packing.pack_times import PackTimes

STAGE = PackTimes(forward_token_ns=1000.0, backward_token_ns=2000.0, forward_square_ns=0.1, backward_square_ns=0.2)
PACKER = Packer(cap=1024, stages=(STAGE,) * 4)
LENGTHS = [random.Random(number).randrange(16, 900) for number in range(48)]


def test_megatron_groups():
    """Tests that groups have Megatron's shape, ids and cap, ranks of one context-parallel group the same packs."""
    samples = [(100 + place, length) for place, length in enumerate(LENGTHS)]
    groups = PACKER.megatron_groups(samples, dp_size=4, cp_size=2)
    assert {len(group) for group in groups} == {8}
    assert all(group[::2] == group[1::2] for group in groups)
    ids = [each for group in groups for pack in group[::2] for each in pack]
    assert sorted(ids) == [number for number, _ in samples]
    packing = PACKER.pack(LENGTHS, 4)
    for rank in range(4):
        assert [group[2 * rank] for group in groups] == [[100 + i for i in each] for each in packing.of_pipeline(rank)]


def test_samples_may_be_rows_of_an_array():
    """Tests that pairs are read from arrays, too, and sizes in numpy's types."""
    rows = numpy.array(list(enumerate(LENGTHS)))
    expected = PACKER.megatron_groups(list(enumerate(LENGTHS)), dp_size=2, cp_size=2)
    for samples in (rows, list(rows)):
        assert PACKER.megatron_groups(samples, dp_size=2, cp_size=numpy.int64(2)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", [(), 0, (1, 2, 3), {1, 2}, {"id": 1, "length": 2}, numpy.array(5), None])
def test_samples_are_pairs(sample: object):
    """Tests that what is no id with a length is refused, whether or not it counts as false."""
    with pytest.raises(ValueError, match=r"samples: .* is not an id and a length; give two values each"):
        PACKER.megatron_groups([sample] * 4, dp_size=2)  # type: ignore[list-item]


def test_groups_of_several_stages_per_device():
    """Tests that microbatches come in groups where Megatron wants them so."""
    packer = Packer(cap=1024, stages=(STAGE,) * 4, multiple=4)
    assert len(packer.megatron_groups(list(enumerate(LENGTHS)), dp_size=2)) % 4 == 0


def test_verl_micro_batches():
    """Tests that ranks agree on a number after asking each other, and keep every sample within the cap."""
    ranks = [LENGTHS[:24], LENGTHS[24:]]
    number = max(len(PACKER.verl_micro_batches(lengths)) for lengths in ranks)
    for lengths in ranks:
        found = PACKER.verl_micro_batches(lengths, number=number)
        assert len(found) == number
        assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
        assert all(sum(lengths[place] for place in each) <= 1024 for each in found)


def test_nemo_bins():
    """Tests that bins are dealt to shards in rotation, as the pipelines of the packing are."""
    bins, packing = PACKER.nemo_bins(LENGTHS, shards=4), PACKER.pack(LENGTHS, 4)
    for shard in range(4):
        assert bins[shard::4] == [list(each) for each in packing.of_pipeline(shard)]


def test_every_sequence_is_in_one_batch_of_one_pipeline():
    """Tests that samplers of all pipelines together give every sequence of a step once, and anew in another epoch."""
    samplers = [PackedBatches(LENGTHS, per_step=24, pipelines=3, rank=rank, packer=PACKER) for rank in range(3)]
    given = [list(sampler) for sampler in samplers]
    assert sorted(itertools.chain(*itertools.chain(*given))) == list(range(48))
    assert len({len(batches) for batches in given}) == 1
    assert given[0] == list(PackedBatches(LENGTHS, per_step=24, pipelines=3, rank=0, packer=PACKER))
    samplers[0].epoch = 1
    assert list(samplers[0]) != given[0]


def test_samplers_refuse_what_is_out_of_range():
    """Tests that ranks and steps that there are not are refused."""
    with pytest.raises(ValueError, match="rank = 3: give a pipeline from 0 to 2"):
        PackedBatches(LENGTHS, per_step=24, pipelines=3, rank=3, packer=PACKER)
    with pytest.raises(ValueError, match="per_step = 49: give 3 to 48 sequences per step"):
        PackedBatches(LENGTHS, per_step=49, pipelines=3, rank=0, packer=PACKER)
    with pytest.raises(ValueError, match="per_step = 2: give 3 to 48 sequences per step"):
        PackedBatches(LENGTHS, per_step=2, pipelines=3, rank=0, packer=PACKER)
    with pytest.raises(ValueError, match=r"rank = 0.5: is no whole number; give an integer"):
        PackedBatches(LENGTHS, per_step=24, pipelines=3, rank=0.5, packer=PACKER)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cp_size = 0; give 1 or more"):
        PACKER.megatron_groups(list(enumerate(LENGTHS)), dp_size=2, cp_size=0)


@pytest.mark.parametrize("length", [0, 1025, 16.5])
def test_samplers_refuse_lengths_before_the_first_step(length: int):
    """Tests that a sequence that no pack takes is told when the sampler is made, not when its step comes."""
    with pytest.raises(ValueError, match=r"lengths\[48\] = "):
        PackedBatches([*LENGTHS, length], per_step=4, pipelines=2, rank=0, packer=PACKER)
