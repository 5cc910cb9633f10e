"""A card that waits for its host: tests of solver_models/simulation/host_clock.py; the times are drawn by hand."""

import numpy as np

from solver_models.simulation.host_clock import HOST_COLUMNS, card_ticks


def play(actions: list[tuple[int, int, int]]) -> list[int]:
    """Ends of actions on one device, one behind the other: (card, host, cross) ticks of each."""
    hosts, now, ends = np.zeros((1, HOST_COLUMNS), np.int64), 0, []
    for x, (card, host, cross) in enumerate(actions):
        now += card_ticks(hosts, 0, x, now, card, np.array([host, cross]))
        ends.append(now)
    return ends


def test_a_quick_host_is_not_seen():
    """Tests that a card that works longer than its host asks ends when it would alone."""
    assert play([(10, 1, 2)] * 4) == [10, 20, 30, 40]


def test_a_slow_host_sets_the_pace():
    """Tests that a card waits for every kernel where the host takes longer."""
    assert play([(1, 5, 6)] * 4) == [6, 11, 16, 21]


def test_a_host_is_two_actions_ahead_at_most():
    """Tests that after a long action the host asks only for what is near: the fourth waits for the end of the first."""
    assert play([(100, 1, 1), (1, 1, 1), (1, 1, 1), (1, 50, 60)]) == [100, 101, 102, 160]
