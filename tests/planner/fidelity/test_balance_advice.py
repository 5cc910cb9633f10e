"""A production step whose microbatches are dealt anew: tests of planner/fidelity/balance_advice.py."""

from hypothesis import given

from planner.dealing import Durations
from planner.fidelity.balance_advice import rebalance
from planner.fidelity.run_replay import replay_ns
from tests.planner.test_dealing import make_step, microbatches


@given(given=microbatches(most=8))
def test_a_step_dealt_anew_takes_as_long_as_promised(given: list[Durations]):
    """Tests that the replay of the step dealt anew ends when the dealing says, and not after the step as run."""
    count = 2 if len(given) % 2 == 0 else 1
    size = len(given) // count
    step = make_step([given[i * size : (i + 1) * size] for i in range(count)])
    anew, dealing = rebalance(step)
    assert replay_ns(anew) == dealing.largest_ns
