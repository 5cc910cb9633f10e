"""Faults in the judge do not get past its tests: valid plans, plans that break one rule, and forged timelines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.judge.broken_plans import BROKEN, unmeasured_share
from tests.planner.judge.core_faults import ACCEPTING_FAULTS, CORE_FAULTS
from tests.planner.judge.corpus import corpus
from tests.planner.judge.judge_faults import JUDGE_FAULTS
from tests.planner.judge.test_times import TAMPERED, make_case, with_transfer

DOCUMENT = json.loads(Path(__file__).with_name("faults.json").read_text(encoding="utf-8"))
"""Every fault with what noticed it: how many of 90 random plans, and by which rules; or what a faulty judge accepts."""


def refuses() -> bool:
    """Whether a valid plan is refused."""
    return any(not verify(problem, plan).passed for problem, plan in corpus())


def is_blind() -> bool:
    """Whether a plan is not rejected for the rule that it breaks."""
    plans = [*BROKEN.items(), ("width-unmeasured", unmeasured_share)]
    return any(rule not in {each.rule for each in verify(*make()).violations} for rule, make in plans)


def is_credulous() -> bool:
    """Whether a timeline in which one thing is wrong is believed."""
    problem, plan = make_case()
    timeline = simulate(problem, plan)
    first, second = timeline.transfers[:2]
    swapped = with_transfer(0, start_ns=second.start_ns, end_ns=second.end_ns)(
        with_transfer(1, start_ns=first.start_ns, end_ns=first.end_ns)(timeline)
    )
    order = timeline.actions["a"]
    idle = (*order[:-1], order[-1]._replace(start_ns=order[-1].start_ns + 9, end_ns=order[-1].end_ns + 9))
    late = replace(timeline, actions={**timeline.actions, "a": idle}, makespan_ns=idle[-1].end_ns)
    waiting = with_transfer(1, ready_ns=second.ready_ns + 1)(timeline)
    forged = [*(change(timeline) for change, _ in TAMPERED.values()), swapped, late, waiting]
    return any(not check_times(Reading(problem, plan), each).inconsistencies for each in forged)


def test_the_judge_is_right():
    """Tests that without a fault nothing is wrong: what the faults below show, they show by themselves."""
    assert all(verify(problem, plan).violations == () for problem, plan in corpus())
    assert not is_blind()
    assert not is_credulous()


def is_noticed(result: dict[str, Any]) -> bool:
    """Whether a faulty judge does what the document says of it."""
    if "refuses" in result:
        return refuses()
    return {"a forged timeline": is_credulous, "a broken plan": is_blind}[result["accepts"]]()


@pytest.mark.slow
@pytest.mark.parametrize("fault", JUDGE_FAULTS)
def test_faults_in_the_judge_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that with one thing wrong in the judge a valid plan is refused or an invalid one passes, as documented."""
    JUDGE_FAULTS[fault](monkeypatch)
    assert is_noticed(DOCUMENT["judge"][fault])


def test_there_are_enough_faults():
    """Tests that the table has at least thirty faults."""
    assert len(JUDGE_FAULTS) >= 30


def test_the_document_lists_all_faults():
    """Tests that faults.json names exactly the faults that are tried."""
    assert list(DOCUMENT["core"]) == [*CORE_FAULTS, *ACCEPTING_FAULTS]
    assert list(DOCUMENT["judge"]) == list(JUDGE_FAULTS)
