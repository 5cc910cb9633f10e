"""Tests of planner/bounds/listed/dealt_microbatches.py."""

import itertools
import random

from planner.bounds.listed.dealt_microbatches import bound_1f1b
from planner.bounds.listed.paced_last_stage import bound_last_stage
from planner.dealing import Durations
from tests.long_runs import shortened
from tests.planner.test_dealing import deal_alone


def random_problem(rng: random.Random) -> list[Durations]:
    """Of up to six microbatches: of any times, or in proportion to a length, as real ones are."""
    stages, count, top = rng.choice((2, 2, 3)), rng.randint(1, 6), rng.choice((3, 20, 100))
    if rng.random() < 0.5:
        rows = [[tuple(rng.randint(0, top) for _ in range(stages)) for _ in range(2)] for _ in range(count)]
        return [Durations(forward_ns=up, backward_ns=down) for up, down in rows]
    usual, last = rng.random() + 0.3, rng.random() * 3 + 0.3
    factors = [usual] * (stages - 1) + [last]
    lengths = [rng.choice((1, 1, 2, 4)) * top for _ in range(count)]
    return [
        Durations(
            forward_ns=tuple(int(length * factor) + rng.randint(0, 1) for factor in factors),
            backward_ns=tuple(int(2 * length * factor) + rng.randint(0, 1) for factor in factors),
        )
        for length in lengths
    ]


def optimum(given: list[Durations], *, pipelines: int, transfer_ns: int) -> int:
    """Of all dealings to one or two pipelines and all orders under 1F1B."""
    best = {(): 0}
    for size in range(1, len(given) + 1):
        for hand in itertools.combinations(range(len(given)), size):
            orders = ([given[i] for i in order] for order in itertools.permutations(hand))
            best[hand] = min(deal_alone(order, transfer_ns=transfer_ns) for order in orders)
    everything = tuple(range(len(given)))
    if pipelines == 1:
        return best[everything]
    return min(max(time, best[tuple(i for i in everything if i not in hand)]) for hand, time in best.items())


def test_the_bound_is_below_the_best_of_all_dealings():
    """Tests that no dealing in any order under 1F1B, of all there are, ends before; and that it is often the best."""
    rng, cases = random.Random(17), shortened(60, whole=4_000)
    tight = above = 0
    for _ in range(cases):
        given, pipelines, transfer_ns = random_problem(rng), rng.randint(1, 2), rng.randint(0, 3)
        forward, backward = ([getattr(one, name) for one in given] for name in ("forward_ns", "backward_ns"))
        bound = bound_last_stage(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns)
        best = optimum(given, pipelines=pipelines, transfer_ns=transfer_ns)
        assert bound <= best, (given, pipelines, transfer_ns)
        tight += bound == best
        above += bound > bound_1f1b(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns)
    assert tight > cases // 10
    assert above


def test_long_microbatches_cost_the_last_stage_a_price():
    """Tests that what the last stage waits for during the long ones is counted, though short ones could go between."""
    short, long = ((10, 14), (20, 28)), ((60, 40), (120, 80))
    forward, backward = ([one[way] for one in [short] * 60 + [long] * 8] for way in (0, 1))
    bound = bound_last_stage(forward, backward, pipelines=8)
    assert bound > bound_1f1b(forward, backward, pipelines=8)
