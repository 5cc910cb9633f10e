"""Faults in the core do not get past the judge; that it accepts the corpus otherwise, test_judge_faults.py asks."""

import pytest

from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.judge.core_faults import ACCEPTING_FAULTS, CORE_FAULTS
from tests.planner.judge.corpus import corpus


@pytest.mark.slow
@pytest.mark.parametrize("fault", CORE_FAULTS)
def test_faults_in_the_core_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that with one thing wrong in the core the judge rejects some plan of the corpus."""
    CORE_FAULTS[fault](monkeypatch)
    assert any(not verify(problem, plan).passed for problem, plan in corpus())


@pytest.mark.parametrize("fault", ACCEPTING_FAULTS)
def test_what_a_faulty_core_accepts_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that the judge refuses a plan that breaks the contract, though the core has come to play it."""
    seed, make = ACCEPTING_FAULTS[fault]
    seed(monkeypatch)
    problem, plan = make()
    simulate(problem, plan)
    assert not verify(problem, plan).passed


def test_there_are_enough_faults():
    """Tests that the table has at least thirty faults."""
    assert len(CORE_FAULTS) >= 30
