"""Sets of actions against Python's own."""

from random import Random

import numpy as np
import pytest

from solver_models.exact_order import action_sets

SIZES = (1, 2, 61, 62, 63, 64, 65, 127, 128, 129, 256)


def numbers(bits: set[int], *, of: int) -> list[int]:
    """A set in as many words as `of` actions need, each as a number with a sign."""
    words = [sum(1 << b - 64 * w for b in bits if b >> 6 == w) for w in range((of + 63) // 64)]
    return [word - (word >> 63 << 64) for word in words]


def members(words: np.ndarray) -> set[int]:
    """What a set in several words holds."""
    return {64 * w + b for w, word in enumerate(words.tolist()) for b in range(64) if word >> b & 1}


@pytest.mark.parametrize("size", SIZES)
def test_orders_of_pairs_are_those_of_sets(size: int):
    """Tests that pairs that are put in order leave the sets that Python's would be, in one word and in several."""
    random, before = Random(size), [set[int]() for _ in range(size)]
    tables = [np.zeros((2, size, (size + 63) // 64), np.int64)]
    tables += [np.zeros((2, size), np.int64)] if size <= action_sets.ONE_LIMB else []
    for _ in range(3 * size):
        a, b = random.randrange(size), random.randrange(size)
        is_possible = a != b and b not in before[a]
        for prior, after in tables:
            assert action_sets.put_before.function(prior, after, size, a, b) is is_possible
        for x in range(size if is_possible else 0):
            before[x] |= before[a] | {a} if x == b or b in before[x] else set()
    for prior, after in tables:
        for x in range(size):
            behind = {y for y in range(size) if x in before[y]}
            assert [action_sets.has.function(prior, x, y) for y in range(size)] == [y in before[x] for y in range(size)]
            assert action_sets.num_common.function(prior, x, after, 0) == len(
                before[x] & {y for y in range(size) if 0 in before[y]}
            )
            found = [action_sets.unknown.function(prior, after, size, x, w) for w in range((size + 63) // 64)]
            assert [int(word) for word in found] == numbers(set(range(x + 1, size)) - before[x] - behind, of=size)
    assert [members(tables[0][0, x]) for x in range(size)] == before
