"""docs/tutorial.md: what it prints is what the commands print; tests/test_page_runs.py runs every command."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from api.cli import main
from tests.test_house_rules import ROOT

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "tutorial"

COMMANDS = [line.removeprefix("$ ") for line in re.findall(r"^\$ .*$", TEXT, flags=re.MULTILINE)]
"""In their order."""


def printed_after(command: str) -> str:
    """The block that follows a command."""
    found = re.search(rf"\$ {re.escape(command)}\n```\n\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    assert found is not None, command
    return found[1]


@pytest.mark.parametrize(
    "command",
    ["pipeplan view plan.json --text", "pipeplan explain plan.json"],
)
def test_printed_is_current(command: str, tmp_path: Path, monkeypatch, capsys):
    """Tests that the timeline and the explanation of the committed plan are as printed."""
    assert command in COMMANDS
    shutil.copy(EXAMPLES / "plan.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "112")
    assert main(shlex.split(command)[1:]) == 0
    said = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert said == printed_after(command)


def test_the_committed_plan_answers_the_committed_workload(monkeypatch, capsys):
    """Tests that the two committed documents belong together."""
    monkeypatch.chdir(EXAMPLES)
    assert main(["verify", "plan.json", "workload.json"]) == 0
    assert "passed" in capsys.readouterr().out
