"""Every command of a page runs, down the page, in a folder as its reader has it (tests/readers_folder.py).

`make test` runs, in this process, the commands of `pipeplan` that take a second. `make test-long` starts them all as
pages print them, with those that measure, train or audit (`TAKES_LONG`); else committed files stand for their results.
Not run are blocks that are marked `console needs: a GPU`, which the site shows, and those of `ELSEWHERE`.
"""

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from api.cli import main
from tests.long_runs import IS_LONG
from tests.readers_folder import furnish
from tests.test_documents import NEW_PAGES, text_of
from tests.test_house_rules import ROOT
from tests.test_page_commands import console_blocks

TAKES_LONG = ("audit ", "profile ", "tune ", "torchrun ", "python ", "launch torchrun examples/two-ranks.json -- ")
"""How commands begin that `make test` leaves to `make test-long`."""

ELSEWHERE = {
    "make ": "`make test` runs all tests, and tests/test_makefile.py reads the targets",
    "serve ": "tests/test_readme.py runs the block of serve-a-team.md, tests/api/service every way to serve",
    "curl ": "tests/test_readme.py",
    "plan workload.json --server ": "tests/test_readme.py",
}
"""How commands begin that other tests run."""

ADDED = {
    "plan workload.json --target deepspeed-dualpipev ": "--max-rounds 1",  # no baseline has its form
    "plan ": "--max-rounds 1 --time-limit 1",
    "what-if ": "--max-rounds 1 --time-limit 1",
    "watch ": "--time-limit 0.5",
    "explain ": "--time-limit 0.5",
    "audit ": "--time-limit 1",
    "tune ": "--time-limit 20 --runs 1",
    "profile ": "--repetitions 1 --attempts 1",
    "launch torchrun plan.json ": "--dry-run",
    "launch torchrun examples/two-ranks.json -- ": "",
    "launch ": "--dry-run",
    "torchrun --nproc-per-node 2 -m planner.execute plan.json ": "--steps 3",
    "torchrun --nproc-per-node 1 -m planner.execute rest.json ": "--steps 3",
}
"""What is added to commands that begin so: less time, fewer steps; jobs of a cluster are printed, not submitted."""

CODES = {"audit megatron --model llama3-70b ": 3}
"""How commands begin that do not end with 0: this configuration does not fit, as the page shows."""

BEFORE = {"docs/how-to/operate.md": "pipeplan keys create --tenant team"}
"""What the page before has done: a service's store is there."""

PROGRAMS = {"pipeplan": ["-m", "api"], "torchrun": ["-m", "torch.distributed.run"], "python": []}


def commands_of(page: str) -> list[list[str]]:
    """The commands that a page's reader can run here, without the name of our own program."""
    before = [("", [BEFORE[page]])] if page in BEFORE else []
    lines = [line for needs, lines in [*before, *console_blocks(text_of(page))] if not needs for line in lines]
    commands = [shlex.split(line.removeprefix("pipeplan "), comments=True) for line in lines]
    left_out = tuple(ELSEWHERE) if IS_LONG else (*ELSEWHERE, *TAKES_LONG)
    return [command for command in commands if begin_of(command, left_out) is None]


def begin_of(command: list[str], begins: Iterable[str]) -> str | None:
    """Which of these a command begins with."""
    return next((begin for begin in begins if f"{' '.join(command)} ".startswith(begin)), None)


def with_added(command: list[str]) -> list[str]:
    """The command as it is run, with what `ADDED` says before the program that a launcher is to start."""
    place = command.index("--") if "--" in command else len(command)
    added = ADDED.get(begin_of(command, ADDED) or "", "")
    return [*command[:place], *added.split(), *command[place:]]


def run(command: list[str]) -> tuple[int, str]:
    """The exit code and what is said to it: in this process, or for `make test-long` by one of its own."""
    if not IS_LONG:
        return main(command), ""
    program, *arguments = command if command[0] in PROGRAMS else ["pipeplan", *command]
    line = [sys.executable, *PROGRAMS[program], *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in NEW_PAGES if commands_of(page)])
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Tests that a page's commands do what they say, one after the other, each with what those before have left."""
    furnish(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPEPLAN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for command in commands_of(page):
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        code, said = run(with_added(command))
        told = capsys.readouterr().err
        assert code == CODES.get(begin_of(command, CODES) or "", 0), f"{shlex.join(command)}\n{said}{told}"


def test_beginnings_are_of_commands():
    """Tests that every rule of this file is about a command that stands on a page."""
    lines = [
        line for page in NEW_PAGES for needs, lines in console_blocks(text_of(page)) if not needs for line in lines
    ]
    commands = [shlex.split(line.removeprefix("pipeplan "), comments=True) for line in lines]
    begins = {*TAKES_LONG, *ELSEWHERE, *ADDED, *CODES}
    assert {begin for begin in begins if any(begin_of(command, (begin,)) for command in commands)} == begins
