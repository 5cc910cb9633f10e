"""Complete enumeration of orders for tiny nets: tests of the enumeration that tests compare with."""

from random import Random

import pytest

from solver_models.simulation.evaluator import FAR
from tests.solver_models.every_order import enumerate_orders, legal_orders
from tests.solver_models.local_search.test_search import every_word, one_stage
from tests.solver_models.nets import (
    random_case,
)
from tests.strategies import random_schedule


@pytest.mark.parametrize(
    ("num_microbatches", "memory_bytes", "weight_stash", "count"),
    [
        (1, 9, 1, 1),
        (2, 9, 1, 5),  # F before I before W, twice: the Young tableaux of three rows
        (3, 9, 1, 42),
        (2, 1, 1, 1),  # a microbatch at a time
        (2, 1, 0, 3),  # F I, F I, and each W anywhere after its I
        (3, 2, 1, 21),
    ],
)
def test_number_of_words(num_microbatches: int, memory_bytes: int, weight_stash: int, count: int):
    """Tests that a stage has as many orders as there are ways to interleave its actions within the memory."""
    case = one_stage(num_microbatches, memory_bytes, weight_stash=weight_stash)
    words, lengths = legal_orders(case.net, 0, 100)
    assert len({tuple(word) for word in words.tolist()}) == len(words) == count
    assert set(lengths.tolist()) == {3 * num_microbatches}
    without_b = [word for word in every_word(case, 0) if all(kind != 3 for kind, *_ in word)]
    assert len(without_b) == count


def test_too_many_words_are_not_listed():
    """Tests that a device with more words than the limit is given up, and that nothing is claimed about it."""
    case = one_stage(3, 9)
    assert legal_orders(case.net, 0, 41)[1][0] == -1
    assert enumerate_orders(case.searcher, case.candidate(), threshold=FAR, most_orders=41, most_plays=10**6) == (
        False,
        None,
    )
    assert enumerate_orders(case.searcher, case.candidate(), threshold=FAR, most_orders=42, most_plays=41) == (
        False,
        None,
    )


def test_orders_of_random_plans_are_legal():
    """Tests that the enumeration of words contains the orders of random plans."""
    for seed in range(40):
        rng = Random(seed)
        case = random_case(rng, num_layers=2, num_devices=2, num_microbatches=2)
        words = case.device_orders(random_schedule(rng, case.problem, stages=case.stages))
        for device, word in words.items():
            codes, lengths = legal_orders(case.net, device, 5000)
            lanes = {
                case.net.replica_stage[n]: n
                for n in range(len(case.net.replica_stage))
                if case.net.replica_device[n] == device
            }
            listed = {tuple(row[:length].tolist()) for row, length in zip(codes, lengths, strict=True)}
            is_dominated = any(
                kind == 3 and case.net.duration[lanes[stage], 3] >= case.net.duration[lanes[stage], 1:3].sum()
                for kind, stage, _ in word
            )
            if not is_dominated or not case.problem.options.split_backward:
                assert tuple(lanes[stage] * 4 + kind for kind, stage, _ in word) in listed
