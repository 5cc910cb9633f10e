"""What decisions say of themselves: tests of planner/decisions/decision.py."""

from dataclasses import fields

import pytest

from planner import decisions
from planner.decisions import choices
from planner.decisions.decision import Decision, Switch
from planner.evidence import certificate
from planner.export.targets import TARGETS, restrict
from planner.problem import Options

OPTIONS = {each.name for each in fields(Options)}


KINDS = {*certificate._KINDS, *certificate._LISTED}


@pytest.mark.parametrize(("option", "decision"), decisions.installed().items())
def test_what_a_decision_names_exists(option: str, decision: Decision):
    """Tests that a decision excludes values of options that there are, and names bounds that there are."""
    assert {option, *(each.option for each in decision.excludes)} <= OPTIONS
    assert all(getattr(Options(), each.option) in (each.value, each.instead) for each in decision.excludes)
    assert decision.bounds is None or decision.bounds <= KINDS


def test_a_new_decision_is_known_to_nobody(monkeypatch: pytest.MonkeyPatch):
    """Tests that what a decision does not say of itself is refused: by programs, exact searches, and most bounds."""
    new = Decision(bounds=frozenset({"work"}), switch=Switch(help="h", says="s"))
    for module in (decisions, choices):
        monkeypatch.setattr(module, "installed", lambda: {"skip_edges": new})
        monkeypatch.setattr(module, "KNOWN", {"skipping": ("skip_edges", (False,))})
    options = Options()
    assert not options.is_enumerated
    assert decisions.holding_bounds(options) == {"work"}
    assert [each.stated for each in decisions.asked(options) if not each.decision.in_complete_model] == [
        "skip_edges = true"
    ]
    assert not restrict(options, TARGETS["executor"]).skip_edges
