"""The README's three commands, on the model that it shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.long_runs import shortened

ROOT = Path(__file__).resolve().parents[2]

LESS: dict[str, list[str]] = shortened(
    {"profile": ["--repetitions", "1", "--attempts", "1"], "plan": ["--max-rounds", "1"]}, whole={}
)
"""What `make test` adds to a command: less is measured, and searched, by the same processes in the same order."""


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_profile_plan_run(tmp_path: Path):
    """Tests that the three commands of the README, as printed, measure, plan and train its model."""
    (example,) = (block for block in blocks("README.md", "python") if "def make_training" in block)
    (tmp_path / "my_model.py").write_text(example)
    (commands,) = (block for block in blocks("README.md", "console") if "pipeplan profile" in block)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]), "OMP_NUM_THREADS": "1"}
    lines = [shlex.split(line.removeprefix("$ ")) for line in commands.splitlines()]
    assert [line[:2] for line in lines] == [["pipeplan", "profile"], ["pipeplan", "plan"], ["pipeplan", "launch"]]
    for line in lines:
        command = [sys.executable, "-m", "api", *line[1:], *LESS.get(line[1], [])]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{shlex.join(line)}\n{done.stderr}"
    assert "iteration 9: loss" in done.stderr
    assert "an iteration: planned " in done.stderr
    refused = [*command, "--on-nonfinite", "skip", "--steps", "0"]
    done = subprocess.run(refused, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "planner.execute: --steps 0 is not positive" in done.stderr
    assert "Traceback" not in done.stderr
