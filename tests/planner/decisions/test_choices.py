"""What is chosen beside what is asked for: tests of planner/decisions/choices.py."""

import pytest

from planner import decisions
from planner.decisions import choices
from planner.decisions.decision import Decision, Excluded
from planner.export.targets import TARGETS, restrict
from planner.problem import Options


def test_programs_name_decisions_that_exist():
    """Tests that what programs know of are options of decisions, and that none is limited and closed at once."""
    for target in TARGETS.values():
        assert target.decisions <= {option for option, _ in decisions.KNOWN.values()}
        assert not choices.closed_but(target.decisions).keys() & target.limits.keys() - {"max_replicas"}


@pytest.mark.parametrize("target", ["torch", "torchtitan"])
def test_choices_of_recomputation_are_closed_together(target: str):
    """Tests that a program that recomputes nothing gets a question without any choice of what recomputes."""
    freedoms = {"recompute_layers": True, "recompute_microbatches": True, "recompute_in_turn": True}
    assert restrict(Options(recompute=True, **freedoms), TARGETS[target]) == restrict(Options(), TARGETS[target])


def test_what_is_asked_for_implies_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    """Tests that the command line sets what a decision needs unless it is stated, and no more."""
    needs = Excluded("recompute", False, True, "", is_implied=True)
    other = Excluded("order", "looped", "any", "")
    monkeypatch.setattr(choices, "installed", lambda: {"new": Decision(bounds=None, excludes=(needs, other))})
    assert choices.implied({"new": True}) == {"recompute": True}
    assert choices.implied({"new": True, "recompute": False}) == {}
    assert choices.implied({"order": "looped"}) == {}
