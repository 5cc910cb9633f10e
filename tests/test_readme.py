"""What the README shows is true."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from api.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


GROUPS = ("cluster", "export", "job", "launch")
"""Commands of two words."""


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def until_program(words: list[str]) -> list[str]:
    """Without the program that a launcher is to run."""
    return words[: words.index("--")] if "--" in words else words


def test_the_commands_exist():
    """Tests that every pipeplan command line of the README names a command and options that exist."""
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ pipeplan ")]
    assert len(lines) >= 10
    for line in lines:
        words = shlex.split(line.removeprefix("$ pipeplan "), comments=True)
        command = words[:2] if words[0] in GROUPS else words[:1]
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert shown.exit_code == 0, line
        for option in (word.partition("=")[0] for word in until_program(words) if word.startswith("--")):
            assert option in shown.output, f"{line}: {option}"


def test_dry_runs_are_as_printed(monkeypatch):
    """Tests that each launcher's dry run in the README is, character by character, what the command prints."""
    monkeypatch.chdir(Path(__file__).parents[1])
    shown = [block for block in blocks("console") if block.startswith("$ pipeplan launch ") and "--dry-run" in block]
    assert [shlex.split(block)[3] for block in shown] == ["torchrun", "slurm", "kubernetes"]
    for block in shown:
        line, _, printed = block.partition("\n")
        done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ pipeplan ")))
        assert (done.exit_code, done.stdout) == (0, printed), line


def test_the_python_example_runs(capsys):
    """Tests that the README's Python example runs as printed and ends with a certified gap."""
    (example,) = blocks("python")
    exec(compile(example.replace("time_limit_s=5", "time_limit_s=2"), "README.md", "exec"), {})
    makespan, bound, gap = capsys.readouterr().out.split()
    assert 0 < int(bound) <= int(makespan)
    assert 0 <= float(gap) < 1


def test_the_documents_it_names_exist():
    """Tests that every file the README names is in the repository."""
    root = Path(__file__).parents[1]
    for name in re.findall(r"`((?:docs/)?[A-Za-z_]+\.md)`", README):
        assert (root / name).exists(), name
