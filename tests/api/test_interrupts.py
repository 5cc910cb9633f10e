"""The command as a process of its own: signals, pipes, terminals and the speed of its start."""

import json
import os
import pty
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

COMMAND = (sys.executable, "-m", "api")
MORE_THAN_A_PIPE_HOLDS = 1 << 17
"""Bytes that are written only once the other end reads."""

HARD, ENDLESS = "demo:gpt-6.2b-zero-bubble", "demo:vgg16-ethernet"


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


def test_interrupt_while_the_command_loads(repository_root: Path):
    """Tests that Ctrl+C in the midst of the imports gives 130 and one line, no traceback."""
    stop = "import os, signal, sys; sys.addaudithook(lambda name, given: name == 'import' and given[0] == 'typer' and "
    run = "os.kill(os.getpid(), signal.SIGINT)); import runpy; runpy.run_module('api', run_name='__main__')"
    done = subprocess.run((sys.executable, "-c", stop + run), cwd=repository_root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nerror: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (("--help",), {"networkx", "numpy", "planner.plan", "pydantic", "rich", "solver_models"}),
        (("plan", "--help-all"), {"networkx", "numpy", "planner.plan", "rich", "solver_models"}),
        (("verify", "examples/two-ranks.json"), {"numpy.ma", "planner.baselines", "planner.planning", "rich.live"}),
        (("simulate", "examples/two-ranks.json"), {"planner.baselines", "planner.planning", "rich.live"}),
        (("explain", "examples/two-ranks.json"), {"planner.planning", "rich.live"}),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_start_is_light(arguments: tuple[str, ...], heavy: set[str], repository_root: Path):
    """Tests that the help loads nothing but typer, and that a plan is judged without a solver, compiler or search."""
    code = "import sys; from api.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = (sys.executable, "-c", code, *arguments)
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "api" in loaded
    assert not loaded & (heavy | {"fastapi", "highspy", "numba", "ortools", "pandas", "pulp", "torch", "uvicorn"})


LIGHT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite", "ortools", "pulp", "highspy", "torch", "uvicorn", "fastapi"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from api.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("verify", "--certificate", "examples/two-ranks.json"), 0, "evidence"),
        (("explain", "examples/two-ranks.json"), 0, "What limits it"),
        (("plan", "demo:vgg16-ethernet"), 2, "pip install 'pipeline-planner[solve]'"),
        (("serve", "--port", "8765"), 2, "pip install 'pipeline-planner[serve]'"),
    ],
)
def test_light_installation(arguments: tuple[str, ...], code: int, said: str, repository_root: Path):
    """Tests that plans are verified and explained without solvers, and that planning without them names the extra."""
    done = subprocess.run(
        (sys.executable, "-c", LIGHT, *arguments), cwd=repository_root, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_closed_pipe(repository_root: Path):
    """Tests that a reader that goes away early causes no traceback."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        (*COMMAND, "import", HARD), cwd=repository_root, stdout=write, stderr=subprocess.PIPE, text=True
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
