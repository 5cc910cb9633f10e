"""A dealing made better by annealing: tests of planner/annealed_dealing.py."""

import itertools

from planner.dealing import Durations, balance_durations
from planner.planning.starts.annealed_deals import CompiledAnnealing


def test_annealing_finds_what_exchanges_do_not():
    """Tests that annealed hands hold everything once and end no later, here earlier: the long ones side by side."""
    short, long = (Durations(forward_ns=(17 * k, 21 * k), backward_ns=(33 * k, 34 * k)) for k in (1, 3))
    given = [long] * 4 + [short] * 12
    quick = balance_durations(given, 4)
    annealed = balance_durations(given, 4, annealing=CompiledAnnealing(trials=4_000))
    assert sorted(itertools.chain(*annealed.pipelines)) == list(range(16))
    assert annealed.lower_bound_ns <= annealed.largest_ns <= quick.largest_ns
    alone = balance_durations(given, 1, annealing=CompiledAnnealing(trials=10))
    assert alone == balance_durations(given, 1)
