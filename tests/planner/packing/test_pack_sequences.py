"""Sequences that are packed and dealt to pipelines."""

import random
from dataclasses import replace
from math import ceil, log
from typing import Any

import numpy
import pytest

from planner.dealing import StageTimes, play_1f1b
from planner.packing.pack_sequences import fill_in_order, pack
from planner.packing.pack_times import PackTimes

LLAMA = PackTimes(forward_token_ns=1000.0, backward_token_ns=2000.0, forward_square_ns=0.016, backward_square_ns=0.032)
"""A stage whose attention takes as long as a quarter of the rest at 16 K tokens, as that of an 8 B model."""


def mocked(count: int, *, least: int, most: int, mean: int, sigma: float, seed: int) -> list[int]:
    """Lengths as Megatron-LM's mock data sets draw them: lognormal, cut off at both ends."""
    rng = random.Random(seed)
    mu = log(mean) - sigma**2 / 2
    return [int(min(most, max(least, rng.lognormvariate(mu, sigma)))) for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("stages", "cap", "lengths", "most", "gap"),
    [
        (4, 4096, {"least": 2048, "most": 4096, "mean": 3072}, 0.84, 0.03),
        (8, 4096, {"least": 2048, "most": 4096, "mean": 3072}, 0.82, 0.04),
        (4, 16384, {"least": 1024, "most": 16384, "mean": 8192}, 0.76, 0.04),
        (8, 16384, {"least": 1024, "most": 16384, "mean": 8192}, 0.69, 0.045),
        (8, 32768, {"least": 1024, "most": 16384, "mean": 8192}, 0.69, 0.045),
    ],
)
def test_faster_than_packs_in_input_order(
    stages: int, cap: int, lengths: dict[str, int], most: float, gap: float, seed: int
):
    """Tests that 8 pipelines take so much less than with packs in input order, and how near to the least that is."""
    given = mocked(512, sigma=1.1, seed=seed, **lengths)
    found = pack(given, 8, cap=cap, stages=[LLAMA] * stages)
    assert found.in_order_ns is not None
    assert found.largest_ns / found.in_order_ns <= most
    assert found.gap <= gap
    assert len({len(each) for each in found.pipelines}) == 1
    assert max(sum(given[i] for i in each) for each in found.packs) <= cap


def test_packs_in_input_order_are_megatrons():
    """Tests that packs are filled in order, and that the last sequences make the packs that are missing."""
    assert fill_in_order([3, 3, 2, 5, 1, 1, 1], 2, cap=8) == [[0, 1, 2], [3, 4, 5, 6]]
    assert fill_in_order([3, 3, 2, 5, 1, 1, 1], 4, cap=8) == [[0, 1, 2], [3, 4], [6], [5]]
    assert fill_in_order([8, 8, 8], 2, cap=8) is None


def test_long_sequences_stay_together():
    """Tests that where the longest are eight times the mean, most pipelines do not wait for one of them."""
    lengths = mocked(512, least=64, most=8192, mean=1024, sigma=1.0, seed=0)
    found = pack(lengths, 8, cap=8192, stages=[LLAMA] * 4)
    longest = sorted(max(lengths[i] for each in found.of_pipeline(rank) for i in each) for rank in range(8))
    assert longest[3] < longest[-1] / 2
    assert found.in_order_ns is not None
    assert found.largest_ns < 0.77 * found.in_order_ns
    assert found.gap < 0.06


def test_pipelines_that_differ_end_at_once():
    """Tests that pipelines get as much less to do as they wait for long packs: each ends within a tenth of the last."""
    lengths = mocked(512, least=64, most=8192, mean=1024, sigma=1.0, seed=0)
    found = pack(lengths, 8, cap=8192, stages=[LLAMA] * 8)
    works, ends = [], []
    for rank in range(8):
        times = [[sum(LLAMA.at(lengths[i])[way] for i in each) for each in found.of_pipeline(rank)] for way in (0, 1)]
        forward, backward = ([[ceil(time)] * 8 for time in row] for row in times)
        ends.append(play_1f1b(forward, backward))
        works.append(sum(map(sum, times)))
    assert min(works) < 0.65 * max(works)
    assert min(ends) > 0.9 * max(ends)
    assert found.gap < 0.11


def test_the_same_on_every_rank_and_with_a_given_number():
    """Tests that the same question has the same answer, and that packs come in the number or the multiple asked for."""
    lengths = mocked(96, least=64, most=2048, mean=700, sigma=1.0, seed=3)
    found = pack(lengths, 4, cap=4096, stages=[LLAMA] * 3)
    assert found == pack(list(lengths), 4, cap=4096, stages=(LLAMA, LLAMA, LLAMA))
    assert {len(each) for each in pack(lengths, 4, cap=4096, stages=[LLAMA] * 3, number=9).pipelines} == {9}
    assert {len(each) % 5 for each in pack(lengths, 4, cap=4096, stages=[LLAMA] * 3, multiple=5).pipelines} == {0}


def test_a_measured_table_will_do():
    """Tests that stages may be tables of what single sequences were measured to take."""
    table = StageTimes(lengths=(1, 10), forward_ns=(10, 100), backward_ns=(20, 200))
    found = pack([4, 4, 2, 2], 2, cap=8, stages=[table])
    assert found.largest_ns == found.lower_bound_ns == 180


def test_sequences_that_take_no_time_are_shared_too():
    """Tests that no pack is left empty where sequences are free."""
    free = PackTimes(forward_token_ns=0.0, backward_token_ns=0.0)
    assert pack([1, 1], 2, cap=4, stages=[free]).packs == ((0,), (1,))


@pytest.mark.parametrize("kind", [numpy.uint8, numpy.int16, numpy.int64])
def test_narrow_numbers_do_not_wrap(kind: type[numpy.integer[Any]]):
    """Tests that lengths in a narrow type of numpy's are packed as Python's integers are."""
    lengths = [100, 27, 90, 100, 100, 60] * 20
    asked = {"cap": 250, "stages": [LLAMA] * 2}
    assert pack(numpy.array(lengths, dtype=kind), 2, **asked) == pack(lengths, 2, **asked)  # type: ignore[arg-type]


def test_narrow_counts_do_not_wrap():
    """Tests that pipelines and packs in a narrow type of numpy's are multiplied as Python's integers are."""
    found = pack([5] * 600, numpy.int8(100), cap=10, stages=[LLAMA], number=numpy.int8(3))  # type: ignore[arg-type]
    assert found == pack([5] * 600, 100, cap=10, stages=[LLAMA], number=3)


def test_many_sequences_fill_their_packs():
    """Tests that thousands of sequences leave little room in packs, and that pipelines end near the bound."""
    lengths = mocked(6_000, least=64, most=4096, mean=1500, sigma=1.0, seed=0)
    found = pack(lengths, 8, cap=4096, stages=[LLAMA] * 2)
    assert found.gap < 0.02
    assert max(sum(lengths[i] for i in each) for each in found.packs) <= 4096


@pytest.mark.parametrize("transfer_ns", [numpy.int64(1000), numpy.uint16(1000), 1e3, numpy.float64(1e3)])
def test_transfers_may_be_computed(transfer_ns: int):
    """Tests that whole times are read as the integers that they are, whatever their type."""
    asked = {"cap": 250, "stages": [LLAMA] * 2}
    expected = pack([100, 27, 90, 60], 2, transfer_ns=1000, **asked)  # type: ignore[arg-type]
    assert pack([100, 27, 90, 60], 2, transfer_ns=transfer_ns, **asked) == expected  # type: ignore[arg-type]


def test_packs_of_another_number_are_no_reference():
    """Tests that packs in input order count for nothing where they are more than were asked for."""
    found = pack([6, 1, 6, 1, 2, 7, 2, 7], 2, cap=8, stages=[LLAMA], number=2)
    assert found.in_order_ns is None
    assert {len(each) for each in found.pipelines} == {2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [5, 9]}, r"lengths\[1\] = 9: a pack has cap = 8 tokens; cut the sequence"),
        ({"lengths": [5, 0]}, r"lengths\[1\] = 0"),
        ({"lengths": [5]}, "1 sequences for 2 pipelines with 1 packs each; give 2 or more"),
        ({"pipelines": 0}, "pipelines = 0; give 1 or more"),
        ({"stages": []}, "stages = 0; give 1 or more"),
        ({"multiple": 0}, "multiple = 0; give 1 or more"),
        ({"lengths": [8, 8, 8]}, "3 packs of cap = 8 tokens or more, and none are found"),
        ({"number": 1, "lengths": [8, 8, 8, 8]}, "run equally many, number = 1; give more"),
        ({"lengths": [5, 2.5]}, r"lengths\[1\] = 2.5: is no whole number; give an integer"),
        ({"lengths": [5, True]}, r"lengths\[1\] = True: is no whole number; give an integer"),
        ({"lengths": {1: 5, 2: 7}}, "lengths are dict; give a list of them, in the order of the sequences"),
        ({"lengths": bytes([5, 7])}, "lengths are bytes; give a list of them, in the order of the sequences"),
        ({"lengths": [5, 0]}, r"lengths\[1\] = 0; give 1 or more"),
        ({"cap": 0}, "cap = 0; give 1 or more"),
        ({"cap": 8.5}, "cap = 8.5: is no whole number; give an integer"),
        ({"pipelines": 2.0}, "pipelines = 2.0: is no whole number; give an integer"),
        ({"number": 0}, "number = 0; give 1 or more"),
        ({"number": 2, "lengths": [1, 2, 3]}, "3 sequences for 2 pipelines with 2 packs each; give 4 or more"),
        ({"number": 3, "multiple": 2, "lengths": [1] * 9}, "number = 3 is no multiple of multiple = 2; give one"),
        ({"transfer_ns": -1}, "transfer_ns = -1; give 0 or more"),
        ({"transfer_ns": "1"}, "transfer_ns = '1': is no whole number; give an integer"),
        ({"transfer_ns": 0.5}, "transfer_ns = 0.5: is no whole number; give an integer"),
        ({"transfer_ns": True}, "transfer_ns = True: is no whole number; give an integer"),
        ({"lengths": None}, "lengths are NoneType; give a list of them"),
        ({"lengths": numpy.array(5)}, "lengths are ndarray; give a list of them"),
        ({"lengths": numpy.ones(3, dtype=bool)}, r"lengths\[0\] = .*True.*: is no whole number; give an integer"),
        ({"stages": [replace(LLAMA, forward_pack_ns=0.7)]}, "of_pack = 0.7: is no whole number; give an integer"),
        ({"transfer_ns": 2**60}, "3 are too much; shorten it"),
        ({"stages": [replace(LLAMA, forward_pack_ns=2**62)]}, "3 are too much; shorten it"),
        ({"stages": [PackTimes(forward_token_ns=1e20, backward_token_ns=0.0)]}, "are too much; shorten it"),
    ],
)
def test_what_cannot_be_packed_is_refused(changes: dict[str, object], message: str):
    """Tests that refusals name the value and the remedy."""
    asked = {"lengths": [1, 2, 3], "pipelines": 2, "cap": 8, "stages": [LLAMA], **changes}
    with pytest.raises(ValueError, match=message):
        pack(asked.pop("lengths"), asked.pop("pipelines"), **asked)  # type: ignore[arg-type]
