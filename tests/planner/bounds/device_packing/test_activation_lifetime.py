"""Tests of planner/bounds/device_packing/activation_lifetime.py."""

from random import Random
from typing import Any

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.device_packing.activation_lifetime import MAX_TRIED, ActivationLifetime, StayTimes
from tests.long_runs import examples


def stays(rng: Random, size: int) -> StayTimes:
    """Stages with random times and bytes."""

    def numbers(most: int) -> Any:
        return numpy.array([rng.randint(0, most) for _ in range(size)])

    return StayTimes(
        stay=numbers(99), forward=numbers(99), rest=numbers(99), tail=numbers(9), held=numbers(9), stash=numbers(9),
        kept=numbers(9), rounded=numbers(0),
    )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_fillings_are_never_underrated(rng):
    """Tests that what fits of two stages is what trying all says, or, where very many fit, somewhat more."""
    count, size = rng.choice([4, 40]), 12
    free = numpy.array([rng.randint(0, 200) for _ in range(size)])
    is_nested = numpy.array([rng.random() < 0.5 for _ in range(size)])
    first, second = stays(rng, size), stays(rng, size)
    residence = ActivationLifetime(
        count=count, deadline=999, nested=is_nested, free=free, between=free, first=first, second=second
    )
    for found, sizes, worth, nested, inside in (
        (residence.filled(), (first.held, second.held), (first.held, second.held), is_nested, 0),
        (residence.begun(), (first.held, second.held), (first.forward, second.forward), is_nested, is_nested),
        (residence.pending(), (first.kept, second.kept), (first.rest, second.rest), 0 * is_nested, 0),
    ):
        least = numpy.broadcast_to(inside, free.shape)
        for place, most in enumerate(found.tolist()):
            fitting = [
                (a * worth[0][place] + b * worth[1][place], a)
                for a in range(count + 1)
                for b in range(int(least[place]), (a if nested[place] else count) + 1)
                if a * sizes[0][place] + b * sizes[1][place] <= free[place]
            ]
            best, _ = max(fitting, default=(0, 0))
            assert best <= most <= best + worth[0][place] + 2 * worth[1][place]
            assert most == best or max(a for _, a in fitting) > MAX_TRIED
