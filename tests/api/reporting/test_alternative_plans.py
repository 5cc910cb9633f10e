"""`pipeplan plan --top K`: files, the screen and the figures of plans of other kinds."""

from planner.document import parse_plan
from planner.plan_kind import kind_of
from tests.api.worlds import Shell

PLAN = ("plan", "workload.json", "--time-limit", "60", "--max-rounds", "1")


def test_every_plan_goes_to_its_file_and_the_screen_says_what_it_trades(shell: Shell):
    """Tests that the best plan is that of a run without --top, that the others go to numbered files and verify, and
    that each has its kind, its time and what it gives and takes on the screen; without --top there is nothing."""
    alone = shell.run(*PLAN, "-o", "alone.json")
    assert alone.code == 0
    assert "Other kinds" not in alone.err
    outcome = shell.run(*PLAN, "--top", "3", "-o", "plan.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert sorted(path.name for path in shell.folder.glob("plan*.json")) == ["plan.2.json", "plan.3.json", "plan.json"]
    assert (shell.folder / "plan.json").read_text() == (shell.folder / "alone.json").read_text()
    kinds = set()
    for name in ("plan.json", "plan.2.json", "plan.3.json"):
        assert shell.run("verify", "--certificate", name).code == 0
        kinds.add(kind_of(parse_plan((shell.folder / name).read_text())))
        assert name in outcome.err
    assert len(kinds) == 3
    table = " ".join(outcome.err.partition("Other kinds of plan")[2].split())
    assert table.startswith("plan kind makespan ms vs best gap memory beside the best 1 ")
    assert "slower; " in table


def test_fewer_than_wanted(shell: Shell):
    """Tests that where the search comes by fewer kinds the screen says so, and why."""
    alone = (*PLAN, "--no-replication", "--no-split-backward", "--max-stages-per-device", "1", "--no-idle-devices")
    outcome = shell.run(*alone, "-m", "1", "--top", "20", "-o", "plan.json")
    assert outcome.code == 0, outcome.err
    number = len(list(shell.folder.glob("plan*.json")))
    assert number < 20
    assert f"{number} of 20: the search found no other kind" in " ".join(outcome.err.split())


def test_standard_output_takes_the_best(shell: Shell):
    """Tests that without -o the best plan alone is written."""
    outcome = shell.run(*PLAN, "--top", "2")
    assert parse_plan(outcome.out).evidence is not None
    assert "Other kinds of plan" in outcome.err
    assert not list(shell.folder.glob("*.2.json"))


def test_a_service_returns_one(shell: Shell):
    """Tests that --top with a service, and less than one plan, are bad usage."""
    outcome = shell.run(*PLAN, "--top", "2", "--server", "http://localhost:1")
    assert outcome.code == 2
    assert "--top: a service returns one plan" in " ".join(outcome.err.split())
    assert shell.run(*PLAN, "--top", "0").code == 2
