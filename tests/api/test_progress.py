"""What a run says while it solves: tests of api/progress.py."""

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from api import progress
from api.progress import _render_progress
from planner.progress import COMPILING, Progress


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_progress_fits_the_screen(width: int):
    """Tests that a step of the search says phase, plan, bound, gap and source on lines that the screen holds."""
    step = replace(
        NO_NEWS, phase="search", incumbent_ns=952 * 10**6, lower_bound_ns=886 * 10**6, gap=0.069, source="SPP"
    )
    text = _render_progress(step, 7.5, width=width)
    assert max(map(len, text.splitlines())) <= width
    said = " ".join(text.split())
    assert all(part in said for part in ("search", "952.0 ms", "886.0 ms", "6.9 %", "synchronous pipeline planner"))
    assert len(text.splitlines()) == 1 or width < 110


NO_NEWS = Progress(elapsed_s=0.0, phase="", incumbent=None, incumbent_ns=None, lower_bound_ns=None, gap=None, source="")


def test_a_wait_for_kernels_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """Tests that a phase without news is told of again and again, but for that in which kernels compile.

    A line before any news ("starting") may come on a busy machine: then what follows it comes later, and is told.
    """
    monkeypatch.setattr(progress, "MAX_PAUSE_S", 0.02)
    monkeypatch.setattr(progress, "MIN_PAUSE_S", 0.1)
    monkeypatch.setattr(progress, "LONGEST_PAUSE_S", 60.0)
    screen = io.StringIO()

    def told(phase: str) -> int:
        return sum(f" {phase} " in f"{line} " for line in screen.getvalue().splitlines())

    def wait_for(phase: str, count: int) -> None:
        until = time.monotonic() + 20
        while told(phase) < count and time.monotonic() < until:
            time.sleep(0.01)

    with progress.Reporter(Console(file=screen), "lines") as reporter:
        reporter.hear(replace(NO_NEWS, phase=COMPILING))
        wait_for(COMPILING, 1)
        time.sleep(0.5)
        reporter.hear(replace(NO_NEWS, phase="search"))
        wait_for("search", 3)
    assert told(COMPILING) == 1
    assert told("search") >= 3


def test_news_that_come_too_soon_are_told_later(monkeypatch: pytest.MonkeyPatch):
    """Tests that what is heard right after a line is told once it is time to, though nothing more is heard."""
    monkeypatch.setattr(progress, "MAX_PAUSE_S", 0.02)
    monkeypatch.setattr(progress, "MIN_PAUSE_S", 0.1)
    monkeypatch.setattr(progress, "LONGEST_PAUSE_S", 60.0)
    screen = io.StringIO()
    with progress.Reporter(Console(file=screen), "lines") as reporter:
        until = time.monotonic() + 20
        while "starting" not in screen.getvalue() and time.monotonic() < until:
            time.sleep(0.001)
        reporter.hear(replace(NO_NEWS, phase=COMPILING))
        while COMPILING not in screen.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert [COMPILING in line for line in screen.getvalue().splitlines()][:2] == [False, True]
