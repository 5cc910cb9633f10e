"""A card that is a thread with a queue, profiled and run as a card is."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_an_emulated_card_takes_what_two_clocks_say(monkeypatch: pytest.MonkeyPatch):
    """Tests that no run is shorter than two clocks say, which is longer than the card's work.

    How much longer depends on who else wants the processor: the command says so.
    """
    from tests.benchmarks import emulated_card

    monkeypatch.setattr(emulated_card, "MICROBATCHES", 2)
    monkeypatch.setattr(emulated_card, "REPETITIONS", 1)
    monkeypatch.setattr(emulated_card, "STEPS", 1)
    for row in emulated_card.compare():
        assert row.card_ns < row.two_clocks_ns
        assert row.executed_ns > 0.8 * row.two_clocks_ns  # the profile is of a moment when others were busy as well
