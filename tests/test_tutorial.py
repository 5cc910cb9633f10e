"""docs/tutorial.md: what it prints is what the commands print, and every command runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli import main
from benchmarks.tutorial_picture import draw_schedules, make_groups
from tests.integration.test_execute_command import start_ranks
from tests.long_runs import IS_LONG
from tests.test_house_rules import ROOT

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "tutorial"
PROGRAMS = {"pipeplan": ["-m", "api"], "torchrun": ["-m", "torch.distributed.run"]}

MODEL = re.search(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for line in re.findall(r"^\$ .*$", TEXT, flags=re.MULTILINE)]
"""In their order."""


def printed_after(command: str) -> str:
    """The block that follows a command."""
    found = re.search(rf"\$ {re.escape(command)}\n```\n\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    assert found is not None, command
    return found[1]


@pytest.mark.parametrize(
    "command",
    ["pipeplan view plan.json --text", "pipeplan explain plan.json", "pipeplan verify --certificate plan.json"],
)
def test_printed_is_current(command: str, tmp_path: Path, monkeypatch, capsys):
    """Tests that the timeline, the explanation and the verdict of the committed plan are as printed."""
    assert command in COMMANDS
    shutil.copy(EXAMPLES / "plan.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "112")
    assert main(shlex.split(command)[1:]) == 0
    said = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert said == printed_after(command)


def test_the_picture_is_current():
    """Tests that the picture of the schedules shows the committed plan, and that the plan's timeline ends first."""
    drawn = draw_schedules()
    assert drawn == (ROOT / "docs" / "images" / "tutorial-schedules.svg").read_text(encoding="utf-8")
    ends = [[row[-1].end_ns for _, row in group] for group in make_groups()]
    gpipe, one_f_one_b, plan = map(max, ends)
    assert gpipe > one_f_one_b > plan


def test_the_committed_plan_answers_the_committed_workload(monkeypatch, capsys):
    """Tests that the two committed documents belong together."""
    monkeypatch.chdir(EXAMPLES)
    assert main(["verify", "plan.json", "workload.json"]) == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.slow
def test_every_command_runs(tmp_path: Path, monkeypatch, capfd):
    """Tests that model, measurement, plan, views, what-if, run and comparison work as printed, one after the other.

    `make test` takes the committed measurement, and forks the ranks: the README's three commands, which
    tests/integration starts as printed, measure and launch the same way.
    """
    assert MODEL is not None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(MODEL[1], encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [line.split()[1] for line in COMMANDS if line.startswith("pipeplan")] == [
        "profile", "plan", "view", "explain", "verify", "what-if", "compare",
    ]  # fmt: skip
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        if IS_LONG:
            command = [sys.executable, *PROGRAMS[program], *arguments]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=540)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        elif program == "torchrun":
            options, words = arguments[: arguments.index("-m")], arguments[arguments.index("-m") + 2 :]
            assert options == ["--nproc-per-node", "2"]
            answers = start_ranks([words] * 2, folder=tmp_path)
            assert [code for code, _ in answers] == [0, 0], answers
        elif arguments[0] == "profile":
            shutil.copy(EXAMPLES / "workload.json", tmp_path)
        else:
            assert main(arguments) == 0, line
    assert (tmp_path / "plan.html").stat().st_size > 10_000
    assert "predicted" in (done.stdout if IS_LONG else capfd.readouterr().out)
