"""`pipeplan plan --objective cost`: files, the screen, the figures, and what is refused."""

import json
from pathlib import Path

import pytest

from planner.document import parse_plan
from tests.api.worlds import Shell

QUICK = ("--time-limit", "60", "--max-rounds", "1")


@pytest.fixture
def priced(shell: Shell) -> Path:
    """The workload of the folder with example prices, the later devices the cheaper ones."""
    document = json.loads((shell.folder / "workload.json").read_text())
    for number, device in enumerate(document["cluster"]["devices"]):
        device["price_per_hour"] = 4 / (1 + number)
    path = shell.folder / "priced.json"
    path.write_text(json.dumps(document))
    return path


def test_cheapest_plan(shell: Shell, priced: Path):
    """Tests that the screen says what the plan costs and the least, and that its document alone proves both bounds."""
    outcome = shell.run("plan", priced.name, "--objective", "cost", *QUICK, "-o", "plan.json")
    assert outcome.code == 0, outcome.err
    words = " ".join(outcome.err.split())
    assert "for 1,000 iterations, at " in words
    assert "on any of the devices" in words
    verified = shell.run("verify", "--certificate", "plan.json")
    assert verified.code == 0
    assert "cost: no plan on any of the devices costs less than" in verified.out + verified.err
    document = json.loads((shell.folder / "plan.json").read_text())
    document["evidence"]["rental"]["certificate"]["boxes"].pop()
    (shell.folder / "forged.json").write_text(json.dumps(document))
    forged = shell.run("verify", "--certificate", "forged.json")
    assert forged.code != 0
    assert "leave subsets out" in " ".join((forged.out + forged.err).split())


def test_kinds_of_the_cheapest_plan(shell: Shell, priced: Path):
    """Tests that --top goes with --objective cost: each kind has a file that proves what it costs."""
    outcome = shell.run("plan", priced.name, "--objective", "cost", "--top", "2", *QUICK, "-o", "kinds.json")
    assert outcome.code == 0, outcome.err
    costs = []
    for name in ("kinds.json", "kinds.2.json"):
        assert shell.run("verify", "--certificate", name).code == 0
        costs.append(parse_plan((shell.folder / name).read_text()).evidence.rental.cost)
    assert costs == sorted(costs)


def test_what_is_refused(shell: Shell, priced: Path):
    """Tests that what there is not is refused with the switch and the remedy."""
    for words, said in (
        (("workload.json", "--objective", "cost"), "has no price_per_hour; state it"),
        ((priced.name, "--deadline", "5"), "set objective to cost"),
        ((priced.name, "--objective", "cost", "--deadline", "-1"), "give milliseconds from 0"),
        ((priced.name, "--objective", "cost", "--deadline", "0.000001"), "no plan is faster than"),
    ):
        outcome = shell.run("plan", *words, *QUICK)
        assert outcome.code != 0
        assert said in " ".join(outcome.err.split()), (words, outcome.err)


def test_what_if_compares_times(shell: Shell, priced: Path):
    """Tests that a question about money is refused by what-if."""
    document = json.loads(priced.read_text())
    document["options"] = {"objective": "cost"}
    priced.write_text(json.dumps(document))
    outcome = shell.run("what-if", priced.name, "--change", "devices=1")
    assert outcome.code != 0
    assert "set objective to makespan" in " ".join(outcome.err.split())
