"""What the README and the pages that it leads to show is true."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from planner.progress import Limits
from tests.long_runs import shortened

ROOT = Path(__file__).parents[1]
README, SERVE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/how-to/serve-a-team.md"))


def blocks(language: str, text: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "kubernetes"])
def test_dry_runs_are_as_printed(launcher: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that each launcher's dry run is, character by character, what the golden file shows."""
    monkeypatch.chdir(ROOT)
    golden = ROOT / "tests" / "golden" / f"dry-run-{launcher}.txt"
    line, _, printed = golden.read_text(encoding="utf-8").partition("\n")
    assert shlex.split(line)[:4] == ["$", "pipeplan", "launch", launcher]
    done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ pipeplan ")))
    assert (done.exit_code, done.stdout) == (0, printed)


def test_the_python_example_runs(capsys):
    """Tests that the README's Python example runs as printed and ends with a certified gap."""
    (example,) = (block for block in blocks("python", README) if "make_plan" in block)
    exec(compile(example.replace("time_limit_s=5", "time_limit_s=1"), "README.md", "exec"), {})
    makespan, bound, gap = capsys.readouterr().out.split()
    assert 0 < int(bound) <= int(makespan)
    assert 0 <= float(gap) < 1


def test_the_service_as_printed(tmp_path, monkeypatch, capsys):
    """Tests that serve, two curls, the command with --server and the Python client run as the page prints them, but for
    the port and the client's time limit.
    """
    from tests.free_ports import free_port

    port = str(free_port())
    (block,) = (block for block in blocks("console", SERVE) if "$ pipeplan serve\n" in block)
    (python,) = blocks("python", SERVE)
    block = block.replace("|\n", "|")
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    serve, curl, plan = (line.replace("8765", port) for line in lines)
    curl = curl.replace("|", shortened('| sed \'s/"time_limit_s": *10.0/"time_limit_s":2.0/\' |', whole="|"), 1)
    root = Path(__file__).parents[1]
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
        exec(compile(hasty.replace("8765", port), "serve-a-team.md", "exec"), {"Limits": Limits})
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
