"""Plans of earlier releases and days verify for good: the files are as they were written then.

A file is named by the day of the commit that wrote it (`2026-11-22-morning` is release 0.2.0) and by its question. Six
of the last day state the bound of a kind that another one usually beats: it was put in afterwards.
"""

import json
from pathlib import Path

import pytest

from api.cli import main
from api.jobs.workers.inspection import inspect
from planner.bounds.cases import refutation
from planner.document import parse_plan
from planner.documents.embedded_problem import enclosed_problem
from planner.evidence.certificate import _EARLIER_KINDS, _FIELDS, proves_anew
from planner.evidence.check_evidence import Rederivation, rederive
from planner.plan import Plan

FOLDER = Path(__file__).parent / "old_plans"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))

DERIVED_ANEW = ("2026-11-23-looped", "2026-11-28-rounded")
"""Their certificates are by rules that are no longer in force."""


def by_other_rules(**certificate: object) -> str:
    """A plan with a refutation that took other work than it takes here, as if cases had been closed otherwise."""
    tree = json.loads(text_of("2026-11-23-refuted"))
    stated = tree["evidence"]["certificate"]
    stated |= {"effort": stated["effort"] + 1, **certificate}
    return json.dumps(tree)


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text(encoding="utf-8")


def rederived(text: str) -> tuple[Plan, Rederivation]:
    plan = parse_plan(text)
    problem = enclosed_problem(plan)
    assert problem is not None
    return plan, rederive(problem, plan)


@pytest.mark.parametrize("name", NAMES)
def test_an_old_plan_verifies(name: str):
    """Tests that a plan of an earlier day passes, its bound derived as stated, by its certificate or anew."""
    plan, outcome = rederived(text_of(name))
    assert plan.evidence is not None
    assert outcome.passed, [*outcome.verdict.violations, *outcome.differences]
    assert (outcome.bound, outcome.lower_bound_ns) == ("derived", plan.evidence.lower_bound_ns)
    is_anew = any("derived again" in note.message for note in outcome.notes)
    assert is_anew == (name in DERIVED_ANEW)


def test_every_kind_of_certificate_is_among_them():
    """Tests that no kind of certificate is left out, that of all sizes of microbatches and that of money included."""
    plans = [parse_plan(text_of(name)) for name in NAMES]
    kinds = {plan.evidence.bound_kind for plan in plans if plan.evidence is not None}
    assert kinds == {*_FIELDS, *_EARLIER_KINDS, "sizes"}
    assert any(plan.evidence is not None and plan.evidence.rental is not None for plan in plans)


@pytest.mark.parametrize("text", [text_of("2026-11-23-looped"), by_other_rules(), by_other_rules(rules=99)])
def test_a_bound_of_an_older_kind_is_derived_anew_or_stays_open(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Tests that what other rules proved is derived anew, or else the rules hold and the answer says so with code 0."""
    _, outcome = rederived(text)
    assert (outcome.passed, outcome.bound) == (True, "derived")
    assert any("derived again" in note.message for note in outcome.notes)
    monkeypatch.setattr("planner.evidence.check_evidence.proves_anew", lambda *_, **__: False)
    (path := tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert main(["verify", "--certificate", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "lower bound of an older release, not checked again" in said
    assert "no rule is broken" in said
    assert main(["verify", "--certificate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    asked = inspect({"what": "verdict", "plan": text, "certificate": True})["verdict"]
    for answer in (told, asked):
        assert (answer["passed"], answer["bound"], answer["lower_bound_ns"]) == (True, "not rechecked", None)
        assert any("not rechecked" in note["message"] for note in answer["notes"])


def test_what_is_not_so_is_not_proved_anew():
    """Tests that an older certificate of more than is true is not taken for a proof."""
    plan, _ = rederived(text_of("2026-11-23-refuted"))
    problem = enclosed_problem(plan)
    assert plan.evidence is not None
    assert problem is not None
    assert proves_anew(problem, plan.evidence.lower_bound_ns)
    assert not proves_anew(problem, plan.evidence.lower_bound_ns + 1)


def test_a_refutation_by_the_rules_in_force_is_held_to_them():
    """Tests that a certificate that states today's rules is rejected where they do not bear it out."""
    _, outcome = rederived(by_other_rules(rules=refutation.RULES))
    assert (outcome.passed, outcome.bound) == (False, "rejected")
    assert [difference.field for difference in outcome.differences] == ["certificate"]
