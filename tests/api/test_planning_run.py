"""One planning run: tests of api/planning_run.py."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.inputs import question_of
from planner.document import parse_plan
from planner.verify import verify
from profiles.load import load_workload
from tests.api.test_interrupts import COMMAND, ENDLESS

MORE_THAN_A_PIPE_HOLDS = 1 << 17
"""Bytes that are written only once the other end reads."""


def start(*arguments: str, root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen((*COMMAND, *arguments), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_sleep(process: subprocess.Popen[str]) -> None:
    """Return once the process waits for something, here for its standard input."""
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


def wait_for_search(process: subprocess.Popen[str]) -> None:
    """Read events until the search has an incumbent to improve."""
    assert process.stderr is not None
    for line in process.stderr:
        event = json.loads(line)
        if event["phase"] == "search" and event["incumbent_ns"]:
            return
    pytest.fail("the process ended before it searched")


def test_first_interrupt_ends_with_the_best_plan(repository_root: Path):
    """Tests that Ctrl+C in the middle of a search gives a verified plan at once and exit code 0."""
    limits = ("--time-limit", "120", "--patience", "1000000")
    process = start("plan", ENDLESS, "-m", "32", *limits, "--json", root=repository_root)
    wait_for_search(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    plan = parse_plan(out)
    assert plan.evidence is not None
    assert plan.evidence.stopped_by == "user"
    assert verify(question_of(plan, load_workload(ENDLESS)), plan).violations == ()
    assert json.loads(err.splitlines()[-1])["event"] == "done"


def test_second_interrupt_aborts(repository_root: Path):
    """Tests that a second Ctrl+C ends the process with 130, even if nothing asks whether to stop."""
    imports = "import time; from api.interrupts import Interrupts"
    block = "with Interrupts(on_first=lambda: print('first', flush=True)): print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        (sys.executable, "-c", f"{imports}\n{block}"),
        cwd=repository_root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in ("ready\n", "first\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == "\nerror: interrupted\n"


def test_interrupt_before_there_is_a_plan(repository_root: Path):
    """Tests that Ctrl+C while standard input is awaited gives 130 and no traceback."""
    with subprocess.Popen(
        (*COMMAND, "plan", "-"),
        cwd=repository_root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(" " * MORE_THAN_A_PIPE_HOLDS)
        process.stdin.flush()
        wait_for_sleep(process)  # a signal between two reads is seen after the next one only
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        out, err = process.communicate()
    assert (out, "Traceback" in err) == ("", False)
