"""The command as a process of its own: signals, pipes, terminals and the speed of its start."""

import os
import pty
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "api")

HARD, ENDLESS = "demo:gpt-6.2b-zero-bubble", "demo:vgg16-ethernet"


def test_closed_pipe(repository_root: Path):
    """Tests that a reader that goes away early causes no traceback."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        (*COMMAND, "import", ENDLESS), cwd=repository_root, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def test_terminal(repository_root: Path):
    """Tests that on a terminal there is a live line and the screen, no plan, and no colour under NO_COLOR."""
    leader, follower = pty.openpty()
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "110"}
    process = subprocess.Popen(
        (*COMMAND, "plan", "demo:gnmt8-four-gpus", "-t", "2"),
        cwd=repository_root, env=environment, stdin=follower, stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    text = read_all(leader)
    assert process.wait(timeout=30) == 0, text
    assert "\x1b[2K" in text
    assert "starting" in text
    assert "this plan" in text
    assert "pipeline-plan/1" not in text
    assert "\x1b[3" not in text.replace("\x1b[39m", "").replace("\x1b[3m", "")


def read_all(descriptor: int) -> str:
    """What comes until the other side has closed."""
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux reports a closed terminal so
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks).decode(errors="replace")
