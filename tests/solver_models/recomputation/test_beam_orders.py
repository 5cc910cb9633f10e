"""Beams over chains of stages: tests of solver_models/recomputation/beam_orders.py."""

from random import Random

import numpy as np
import pytest

from solver_models.recomputation.beam_orders import (
    F_KEPT,
    F_RECOMPUTED,
    REST,
    RETURN,
    BeamChain,
    BeamGuide,
    search_beam,
)

GUIDE = BeamGuide(width=40, scale=60.0, power=2.0, progress=0.1, noise=0.0)


def equal_chain(stages: int, *, count: int, room: int) -> BeamChain:
    """Actions of one cell; a stash of two units, half of it until W; recomputation takes a cell and leaves nothing."""
    table = np.zeros((stages, 2, 3, 3), np.int64)
    table[:, 0], table[:, 1] = [[1, 2, 2], [1, 0, -1], [1, 0, -1]], [[1, 0, 0], [2, 2, 1], [1, 0, -1]]
    return BeamChain(table, np.array([[room, 1, 0, 0]] * stages, np.int64), count)


def require_order(chain: BeamChain, begun: list[int], *, stage: int) -> None:
    """A stage runs every F, I and W once, in that order per microbatch, and stays within its memory."""
    table, (room, has_weight, *_) = chain.table[stage], chain.limits[stage].tolist()
    kinds, held, number = [kind for kind in begun if kind >= 0], 0, {RETURN: 0, REST: 0}
    flags = [kind for kind in kinds if kind in (F_KEPT, F_RECOMPUTED)]
    assert [len(flags), kinds.count(RETURN), kinds.count(REST)] == [
        chain.num_microbatches,
        chain.num_microbatches,
        has_weight * chain.num_microbatches,
    ]
    for place, kind in enumerate(kinds):
        variant, column = (kind, 0) if kind <= F_RECOMPUTED else (0, 2)
        if kind == RETURN:
            variant, column = flags[number[RETURN]], 1
            assert sum(each <= F_RECOMPUTED for each in kinds[:place]) > number[RETURN]
        if kind == REST:
            assert number[REST] < number[RETURN]
        if kind in number:
            number[kind] += 1
        assert held + table[variant, column, 1] <= room
        held += table[variant, column, 2]
    assert held == 0


@pytest.mark.parametrize(("room", "most"), [(2, 36), (4, 31), (6, 28), (8, 27)])
def test_every_action_begins_once_and_fits(room: int, most: int):
    """Tests that four stages of eight microbatches run in order within memory, about as soon as the best plans end."""
    chain = equal_chain(4, count=8, room=room)
    orders = search_beam(chain, GUIDE, 0)
    assert orders.shape == (4, 24)
    for stage, begun in enumerate(orders.tolist()):
        require_order(chain, begun, stage=stage)
    work = max(3 * 8 + begun.count(F_RECOMPUTED) for begun in orders.tolist())
    assert work <= most


def test_unlike_stages_stay_within_memory():
    """Tests that whatever times, sizes and lags are, what is found is whole and fits."""
    num_found = 0
    for seed in range(30):
        rng = Random(seed)
        stages, count = rng.randint(1, 4), rng.randint(1, 6)
        chain = equal_chain(stages, count=count, room=rng.randint(2, 6))
        chain.table[..., 0] += np.array([[[rng.randint(0, 2) for _ in "FIW"]] * 2 for _ in range(stages)])
        chain.limits[:, 2:] = [[rng.randint(0, 2), rng.randint(0, 2)] for _ in range(stages)]
        if rng.random() < 0.3:
            chain.table[:, 0, 1, 2], chain.table[:, 1, 1, 2], chain.limits[:, 1] = -2, 0, 0
        orders = search_beam(chain, GUIDE._replace(scale=200.0, noise=rng.choice([0.0, 0.7])), seed)
        num_found += len(orders) > 0
        for stage, begun in enumerate(orders.tolist()):
            require_order(chain, begun, stage=stage)
    assert num_found == 30


def test_without_room_nothing_comes_to_the_end():
    """Tests that where not even one microbatch fits, there are no orders."""
    assert search_beam(equal_chain(2, count=2, room=1), GUIDE, 0).shape == (0, 0)
