"""Dealings annealed by compiled code: tests of planner/planning/starts/annealed_deals.py."""

from planner.dealing import Durations
from planner.fidelity.advice import advise
from planner.planning.starts.annealed_deals import CompiledAnnealing
from tests.planner.test_dealing import make_step


def test_remedies_are_between_their_bound_and_the_step():
    """Tests that unequal hands are dealt better, that all bounds hold, and that heavy stages are cut anew."""
    short, long = (Durations(forward_ns=(k, 3 * k), backward_ns=(2 * k, 6 * k)) for k in (1000, 9000))
    step = make_step([[long] * 4, [short] * 4])
    advice = advise([step], blocks_per_stage=4, annealing=CompiledAnnealing(trials=400))
    assert not advice.is_alike
    order, dealt, placed, cut = advice.remedies
    for remedy in advice.remedies:
        assert remedy.lower_bound_ns <= remedy.makespan_ns <= advice.replayed_ns
    assert cut.makespan_ns < dealt.makespan_ns < order.makespan_ns
    assert placed.what.startswith("placed again: ")
