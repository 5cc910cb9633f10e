"""What the README and the pages it leads to first show is true."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from api.cli import app
from planner.progress import Limits
from tests.long_runs import shortened

ROOT = Path(__file__).parents[1]
README, USAGE, LAUNCH = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/usage.md", "docs/launch.md")
)

GROUPS = ("cluster", "export", "job", "launch")
"""Commands of two words."""


def blocks(language: str, *texts: str) -> list[str]:
    """The fenced blocks of one language, in the README or in other texts."""
    return re.findall(rf"```{language}\n(.*?)```", "\n".join(texts or (README,)), flags=re.DOTALL)


def until_program(words: list[str]) -> list[str]:
    """Without the program that a launcher is to run."""
    return words[: words.index("--")] if "--" in words else words


def test_the_commands_exist():
    """Tests that every pipeplan command line of README and usage names a command and options that exist."""
    lines = [
        line
        for block in blocks("console", README, USAGE)
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith("$ pipeplan ")
    ]
    assert len(lines) >= 25
    for line in lines:
        words = shlex.split(line.removeprefix("$ pipeplan "), comments=True)
        command = words[:2] if words[0] in GROUPS else words[:1]
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert shown.exit_code == 0, line
        for option in (word.partition("=")[0] for word in until_program(words) if word.startswith("--")):
            assert option in shown.output, f"{line}: {option}"


def test_dry_runs_are_as_printed(monkeypatch):
    """Tests that each launcher's dry run in docs/launch.md is, character by character, what the command prints."""
    monkeypatch.chdir(ROOT)
    shown = [
        block for block in blocks("console", LAUNCH) if block.startswith("$ pipeplan launch ") and "--dry-run" in block
    ]
    assert [shlex.split(block)[3] for block in shown] == ["torchrun", "slurm", "kubernetes"]
    for block in shown:
        line, _, printed = block.partition("\n")
        done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ pipeplan ")))
        assert (done.exit_code, done.stdout) == (0, printed), line


def test_the_python_example_runs(capsys):
    """Tests that the README's Python example runs as printed and ends with a certified gap."""
    (example,) = (block for block in blocks("python") if "Client(" not in block)
    exec(compile(example.replace("time_limit_s=5", "time_limit_s=1"), "README.md", "exec"), {})
    makespan, bound, gap = capsys.readouterr().out.split()
    assert 0 < int(bound) <= int(makespan)
    assert 0 <= float(gap) < 1


def test_the_documents_it_names_exist():
    """Tests that every file the README names is in the repository."""
    for name in re.findall(r"`((?:docs/)?[A-Za-z_/]+\.(?:md|json))`", README + USAGE):
        assert (ROOT / name).exists() or name.startswith("out/"), name


def test_the_service_as_printed(tmp_path, monkeypatch, capsys):
    """Tests that serve, two curls, the command with --server and the Python client run as printed, but for the port
    and the client's time limit.
    """
    from api.service.serving import free_port

    port = str(free_port())
    (block,) = (block for block in blocks("console") if "$ pipeplan serve\n" in block)
    (python,) = (block for block in blocks("python", USAGE) if "Client(" in block)
    block = block.replace("|\n", "|")
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    serve, curl, plan, *composed = (line.replace("8765", port) for line in lines)
    curl = curl.replace("|", shortened('| sed \'s/"time_limit_s": *10.0/"time_limit_s":2.0/\' |', whole="|"), 1)
    root = Path(__file__).parents[1]
    assert all((root / line.split()[3]).exists() for line in composed)  # no container engine here: see tests/docker
    cli = [sys.executable, "-m", "api"]
    environment = {**os.environ, "PYTHONPATH": str(root), "PIPEPLAN_DATA": str(tmp_path / "data")}
    process = subprocess.Popen(
        [*cli, *serve.split()[1:], "--port", port], cwd=tmp_path, env=environment, start_new_session=True
    )
    try:
        wait_for_port(int(port))
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, check=True, cwd=tmp_path).stdout
        job = json.loads(answer)
        assert (job["state"], job["verdict"]) == ("succeeded", {"passed": True})
        assert 0 <= job["gap"] < 1
        hasty = python.replace("on_event=", "limits=Limits(time_limit_s=1), on_event=")
        exec(compile(hasty.replace("8765", port), "README.md", "exec"), {"Limits": Limits})
        makespan, bound, _ = capsys.readouterr().out.split()
        assert int(bound) <= int(makespan)
        demo = subprocess.run([*cli, "import", "demo:vgg16-ethernet"], capture_output=True, check=True, cwd=root).stdout
        (tmp_path / "workload.json").write_bytes(demo)
        words = [*cli, *plan.split()[1:], "--time-limit", "1"]
        subprocess.run(words, check=True, cwd=tmp_path, env=environment, capture_output=True)
        assert (tmp_path / "plan.json").read_text().startswith('{"format": "pipeline-plan/1"')
    finally:
        process.terminate()
        assert process.wait(60) == 0


def wait_for_port(port):
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
        else:
            return
