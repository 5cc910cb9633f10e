"""Structured logs: whatever comes to standard error is one JSON object a line."""

import json
import math
import subprocess
import sys
import time
from typing import Any

import pytest

from api.jobs.logs import VARIABLE, render_line
from api.jobs.workers.solver_handle import Child, ProcessLimits
from tests.api.forked_solvers import load_solver

SAYS_ALL = """
import asyncio, gc, logging, sys, threading, traceback, warnings
from api.jobs.logs import configure, log_printed, tell

configure("json")
print("printed", file=sys.stderr)
sys.stderr.write("in ")
sys.stderr.write("parts\\n\\nof two\\n")
warnings.warn("warned")
logging.getLogger("uvicorn.error").error("a server's %s", "word")
logging.getLogger("other").warning("%d does not fit", "this")
tell("told", gap=float("nan"), name="\\ud800", odd={(1, 2): 3})
log_printed('{"at": "2026-01-01T00:00:00+00:00", "level": "info", "event": "passed on"}')
log_printed('{"at": "not a line of ours"}')
log_printed("{" * 100_000)
try:
    raise KeyError("caught")
except KeyError:
    traceback.print_exc()

def fail():
    raise ValueError("in a thread")

thread = threading.Thread(target=fail)
thread.start()
thread.join()

class Odd:
    def __del__(self):
        raise ValueError("in an end")

Odd()
gc.collect()

async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "in a loop"})

asyncio.run(main())
raise ValueError("at last\\nin two lines")
"""


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """What a process says that says everything that a process may say."""
    done = subprocess.run([sys.executable, "-c", SAYS_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    return [json.loads(line, parse_constant=pytest.fail) for line in done.stderr.splitlines()]


def test_every_line_is_json(lines: list[dict[str, Any]]):
    """Tests that prints, warnings, other loggers, odd values and exceptions that nobody caught all become lines."""
    assert all({"at", "level", "event"} <= set(line) for line in lines)
    events = [line["event"] for line in lines]
    for event in (
        *("printed", "in parts", "of two", "a server's word", "told", "passed on", "KeyError: 'caught'", "in a loop"),
        *("%d does not fit ('this',)", "uncaught error", '{"at": "not a line of ours"}'),
    ):
        assert events.count(event) == 1, (event, events)
    assert any("UserWarning: warned" in event for event in events)
    assert any(event.startswith("the thread Thread-") for event in events)


def test_a_traceback_is_one_line(lines: list[dict[str, Any]]):
    """Tests that an exception that nobody caught is one line, whose trace has the message whole."""
    traces = [line["trace"] for line in lines if "trace" in line]
    for words in ("ValueError: in a thread", "ValueError: in an end", "ValueError: at last\nin two lines"):
        assert sum(trace.endswith(words) for trace in traces) == 1, traces


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, {1: {2, 3}}, {(1, 2): 3}, "\ud800", b"\xff", "two\nlines\u2028", None]
)
def test_odd_values_stay_json(value: object):
    """Tests that a value that JSON does not know is shown as text, on the same line."""
    text = render_line({"event": "x", "value": value})
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text, parse_constant=pytest.fail)["event"] == "x"


class Noisy(Child):
    """A solver process that cannot even start."""

    def _program(self) -> tuple[str, ...]:
        return ("tests.api.jobs.no_such_module",)


def test_what_a_solver_prints_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Tests that a solver process prints into its master's log, even what it says when it cannot start."""
    monkeypatch.setenv(VARIABLE, "json")
    monkeypatch.setattr(Child, "_open", load_solver)
    child = Noisy(ProcessLimits())
    child.start()
    pid, until = child.pid, time.monotonic() + 30
    while not caplog.records:
        assert time.monotonic() < until
        time.sleep(0.01)
    child.kill()
    assert "no_such_module" in caplog.records[0].getMessage()
    assert caplog.records[0].fields == {"pid": pid}  # type: ignore[attr-defined]
