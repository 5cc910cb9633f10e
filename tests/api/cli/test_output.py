"""Where the commands write: tests of api/cli/output.py."""

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli.output import write_folder
from api.failures import InputError
from planner.document import parse_plan
from planner.verify import verify
from profiles.load import load_workload
from tests.api.test_cli import ROUND
from tests.api.worlds import Shell, make_problem

PLAN = ("plan", "workload.json", *ROUND)


def assert_is_plan(text: str, *, workload: str):
    """The text is a plan that the verifier passes on the workload of the file."""
    plan = parse_plan(text)
    problem = make_problem(load_workload(workload))
    assert verify(replace(problem, num_microbatches=plan.problem.num_microbatches), plan).violations == ()


def test_plan_goes_to_standard_output(shell: Shell):
    """Tests that the plan goes to standard output, and progress and the screen to standard error."""
    outcome = shell.run(*PLAN)
    assert outcome.code == 0, outcome.err
    assert_is_plan(outcome.out, workload="workload.json")
    assert "best plan" in outcome.err
    assert "this plan" in outcome.err
    assert "✓ passed" in outcome.err


def test_plan_goes_to_files(shell: Shell):
    """Tests that plan, picture and trace go to their files, which the screen names, and standard output stays empty."""
    outcome = shell.run(*PLAN, "-o", "p.json", "--html", "p.html", "--trace", "t.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert_is_plan((shell.folder / "p.json").read_text(), workload="workload.json")
    assert (shell.folder / "p.html").read_text().startswith("<!doctype html>")
    assert json.loads((shell.folder / "t.json").read_text())
    assert all(
        f"  {name}\n" in outcome.err.replace(" \n", "\n") or name in outcome.err for name in ("p.json", "p.html")
    )


def test_plan_as_json(shell: Shell):
    """Tests that with --json every line on standard error is an event, the last one with the summary."""
    outcome = shell.run(*PLAN, "--json", "-o", "p.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    events = [json.loads(line) for line in outcome.err.splitlines()]
    assert {event["event"] for event in events[:-1]} == {"progress"}
    assert events[-1]["event"] == "done"
    assert events[-1]["verdict_passed"] is True
    assert events[-1]["lower_bound_ns"] <= events[-1]["makespan_ns"]
    assert events[-1]["files"] == {"plan": "p.json"}


def test_quiet(shell: Shell):
    """Tests that --quiet leaves nothing but the plan."""
    outcome = shell.run(*PLAN, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert_is_plan(outcome.out, workload="workload.json")


def test_pipes(shell: Shell):
    """Tests that a workload is read from standard input, and so is a plan."""
    made = shell.run("plan", "-", *ROUND, "-q", stdin=(shell.folder / "workload.json").read_text())
    assert made.code == 0, made.err
    checked = shell.run("verify", "-", "workload.json", stdin=made.out)
    assert (checked.code, checked.err) == (0, "")
    assert "✓ passed" in checked.out


def test_what_its_place_does_not_take_is_kept(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that a document for which the disk has no room is kept elsewhere and named, or is asked for elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(shell.folder))
    full = shell.run("schema", "plan", "-o", "/dev/full")
    told = r"/dev/full: cannot be written \(No space left on device\); "
    found = re.search(f"{told}copy it from (.*)\n", full.err)
    assert found is not None, full.err
    assert full.code == 2
    assert Path(found[1]).read_text() == shell.run("schema", "plan").out
    monkeypatch.setattr(tempfile, "tempdir", str(shell.folder / "missing"))
    assert re.search(f"{told}choose another place", shell.run("schema", "plan", "-o", "/dev/full").err)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    """Tests that files go into a folder that is made with those above it, and a file in its place is refused."""
    write_folder({"a.txt": "1"}, tmp_path / "b" / "c")
    assert (tmp_path / "b" / "c" / "a.txt").read_text() == "1"
    with pytest.raises(InputError, match=r"a\.txt: no folder can be made there .*; choose another place"):
        write_folder({}, tmp_path / "b" / "c" / "a.txt")
