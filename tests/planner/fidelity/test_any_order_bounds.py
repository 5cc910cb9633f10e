"""Tests of planner/fidelity/any_order_bounds.py."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import ceil
from random import Random

import pytest

from planner.fidelity.any_order_bounds import bound_any_assignment, bound_any_placement
from planner.fidelity.run_pipelines import find_shape, rows_of, with_rows
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import ReplicaKey, RunAction, RunStep
from tests.long_runs import examples
from tests.planner.fidelity.test_chunk_advice import random_step
from tests.planner.fidelity.test_order_advice import ordered_at_random


@pytest.mark.parametrize("seed", range(examples(30)))
def test_no_dealing_is_below_the_bound(seed: int):
    """Tests that of random dealings in random orders none ends before the bound, transfers taken as they were."""
    rng = Random(seed)
    step = random_step(rng)
    shape = find_shape(step)
    assert shape is not None
    hands = rows_of(step, shape)
    rows = [row for hand in hands.values() for row in hand]
    lag = max(step.transfers_ns.values())
    bound = bound_any_assignment(rows, shape, pipelines=len(hands), transfer_ns=lag)
    for _ in range(10):
        rng.shuffle(rows)
        half = len(rows) // 2
        dealt = with_rows(step, shape, assignments={0: rows[:half], 1: rows[half:]})
        assert bound <= replay_ns(ordered_at_random(dealt, rng))


@pytest.mark.parametrize("seed", range(examples(20)))
def test_no_placement_is_below_the_bound(seed: int):
    """Tests that of all permutations of unlike devices, in several orders, none ends before the bound."""
    rng = Random(seed)
    step = random_step(rng)
    shape = find_shape(step)
    assert shape is not None
    factors = {seat: Fraction(rng.choice((2, 2, 3, 5)), 2) for seat in step.actions}
    best = replay_ns(step)
    seats: list[ReplicaKey] = list(step.actions)
    for order in permutations(seats):
        moved = placed(step, {a: factors[b] / factors[a] for a, b in zip(seats, order, strict=True)})
        for one in (moved, ordered_at_random(moved, rng)):
            best = min(best, replay_ns(replace(one, transfers_ns={})))
    assert bound_any_placement(rows_of(step, shape), shape, factors=factors, at_most_ns=best) <= best
    assert bound_any_placement(rows_of(step, shape), shape, factors=factors, at_most_ns=10**12) <= best


def placed(step: RunStep, by: dict[ReplicaKey, Fraction]) -> RunStep:
    """Each place's actions times a factor."""

    def slower(action: RunAction, factor: Fraction) -> RunAction:
        return replace(action, duration_ns=ceil(action.duration_ns * factor))

    return replace(
        step, actions={seat: tuple(slower(each, by[seat]) for each in row) for seat, row in step.actions.items()}
    )
