"""A step of a production job played by the contract's rules: tests of planner/fidelity/run_replay.py."""

from itertools import permutations
from math import ceil
from random import Random

import pytest

from planner.dealing import Durations
from planner.fidelity.placement_advice import device_factors
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import ReplicaKey, RunStep
from tests.planner.fidelity.test_placement_advice import placed_anew
from tests.planner.test_dealing import make_step


def slowed(rng: Random, *, pipelines: int, num_microbatches: int = 3) -> RunStep:
    """Two stages of unequal work; some devices take up to three times as long."""
    work = [rng.randint(500, 4000) for _ in range(2)]
    hands = []
    for _ in range(pipelines):
        by = [rng.choice([1, 1, 1.5, 3]) for _ in range(2)]
        times = [round(value * factor) for value, factor in zip(work, by, strict=True)]
        hands.append(
            [Durations(forward_ns=tuple(times), backward_ns=tuple(2 * each for each in times))] * num_microbatches
        )
    return make_step(hands)


def best_of_all(step: RunStep) -> int:
    """Every permutation of the devices, replayed in the order as run."""
    factors = device_factors([step], step)
    seats: list[ReplicaKey] = list(step.actions)
    found = []
    for order in permutations(seats):
        durations = {
            (*seat, a.kind, a.microbatch): ceil(a.duration_ns * factors[device] / factors[seat])
            for seat, device in zip(seats, order, strict=True)
            for a in step.actions[seat]
        }
        found.append(replay_ns(step, durations_ns=durations))
    return min(found)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_against_every_placement(seed: int):
    """Tests that the bound is below the best permutation, and what is found between it and the step as run."""
    step = slowed(Random(seed), pipelines=2)
    placed = placed_anew(step)
    assert placed is not None
    best = best_of_all(step)
    assert placed.lower_bound_ns <= best <= placed.makespan_ns <= replay_ns(step)
    assert placed.makespan_ns <= 1.1 * best


def test_a_slow_device_goes_where_little_is_to_do():
    """Tests that a device of twice the time at the heavy stage changes places with one at the light stage."""
    usual = Durations(forward_ns=(1000, 3000), backward_ns=(2000, 6000))
    slow = Durations(forward_ns=(1000, 6000), backward_ns=(2000, 12000))
    step = make_step([[usual] * 4, [slow] * 4, [usual] * 4])
    placed = placed_anew(step)
    assert placed is not None
    assert placed.device_of[1, 1][1] == 0
    assert next(seat for seat, device in placed.device_of.items() if device == (1, 1))[1] == 0
    assert placed.makespan_ns < 0.8 * replay_ns(step)
