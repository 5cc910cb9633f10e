"""What a run says while it solves: a live line on a terminal, plain lines elsewhere, JSON for programs, or nothing."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.live import Live
from rich.text import Text

from api.formatting import ABSENT, render_ms, render_percent
from api.reporting.plain_names import render_source
from api.reporting.screen_table import pack
from planner.plan import Plan
from planner.progress import COMPILING, Progress

ReportStyle = Literal["live", "lines", "json", "quiet"]
"""How a run reports: see the module."""

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_WIDE = 110
"""Columns of a screen on which a step is one line, as most then are."""

_INDENT = 10
"""Columns before what stands below the time, on other screens."""

MAX_PAUSE_S, LONGEST_PAUSE_S = 3.0, 24.0
"""A line comes after so long, whatever the run is busy with; each without news doubles the pause, up to the longest.
While kernels compile it is the longest from the beginning: that there is nothing new is no news."""

MIN_PAUSE_S = 1.0
"""Plain lines come at most once in this time; JSON lines without news too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """How a planning run went, as far as the plan itself does not say."""

    elapsed_s: float
    """Seconds from the first look at the problem to the plan."""
    first_plan_s: float | None = None
    """Seconds to the first verified plan."""
    files: Mapping[str, str] | None = None
    """Paths of the written files, by what they hold."""
    top: int = 1
    """Plans of different kinds that were wanted."""
    others: tuple[Plan, ...] = ()
    """Those beside the best that were found."""
    target: str = "executor"
    """The program that is to run the plan."""


def _render_progress(progress: Progress | None, elapsed_s: float, *, width: int) -> str:
    """Elapsed time, phase, best plan, lower bound, gap and who found the best plan: a line, or more if it is narrow."""
    clock = f"{elapsed_s:6.1f} s"
    if progress is None:
        return f"{clock}  starting"
    bounds = f"best plan {_ms(progress.incumbent_ns):>10}  lower bound {_ms(progress.lower_bound_ns):>10}"
    source = render_source(progress.source) if progress.source else ""
    line = f"{clock}  {progress.phase:<9}  {bounds}  gap {render_percent(progress.gap):>6}  {source}".rstrip()
    if len(line) <= width >= _WIDE:
        return line
    items = [f"best plan {_ms(progress.incumbent_ns)}", f"lower bound {_ms(progress.lower_bound_ns)}"]
    items += [f"gap {render_percent(progress.gap)}", source] if source else [f"gap {render_percent(progress.gap)}"]
    return "\n".join([f"{clock}  {progress.phase}", *pack(items, width - _INDENT, indent=_INDENT)])


def _ms(nanoseconds: int | None) -> str:
    return ABSENT if nanoseconds is None else f"{render_ms(nanoseconds)} ms"


def _render_event(progress: Progress) -> str:
    """One step as one line of JSON."""
    event = {
        "event": "progress",
        "elapsed_s": round(progress.elapsed_s, 3),
        "phase": progress.phase,
        "incumbent_ns": progress.incumbent_ns,
        "lower_bound_ns": progress.lower_bound_ns,
        "gap": progress.gap,
        "source": progress.source,
    }
    return json.dumps(event, ensure_ascii=False)


def _visible(progress: Progress) -> tuple[object, ...]:
    return progress.phase, progress.incumbent_ns, progress.lower_bound_ns


class Reporter:
    """Hears of every step of a run and tells the console in its voice."""

    def __init__(self, console: Console, style: ReportStyle) -> None:
        self.console, self.style = console, style
        self.started = time.monotonic()
        self.first_plan_s: float | None = None
        self.is_stopping = False
        self._last: Progress | None = None
        self._last_line_at, self._pause_s, self._is_told = -math.inf, MAX_PAUSE_S, False
        self._live: Live | None = None
        self._ended = Event()
        self._writing = RLock()
        self._ticker = Thread(target=self._tick, daemon=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the reporter was made."""
        return time.monotonic() - self.started

    def hear(self, progress: Progress) -> None:
        """Take note of a step, and tell if it is time to."""
        is_new = self._last is None or _visible(progress) != _visible(self._last)
        is_time = time.monotonic() - self._last_line_at >= MIN_PAUSE_S
        self._last = progress
        if is_new:
            self._pause_s = LONGEST_PAUSE_S if progress.phase == COMPILING else MAX_PAUSE_S
            self._is_told = False
        if self.first_plan_s is None and progress.incumbent_ns is not None:
            self.first_plan_s = self.elapsed_s
        if self.style == "json" and (is_new or is_time):
            self._tell(_render_event(progress))
        elif self.style == "lines" and is_time and not self._is_told:
            self._tell(self._line())

    def _line(self) -> str:
        return _render_progress(self._last, self.elapsed_s, width=self.console.width)

    def _tell(self, line: str) -> None:
        with self._writing:
            self._last_line_at, self._is_told = time.monotonic(), True
            self.write(line)

    def _tick(self) -> None:
        """Say again how far the run is where nothing was said for a while: it may be in the midst of a long step.

        News that came too soon after another line are told as soon as it is time to, not after a pause without news.
        """
        while not self._ended.wait(MAX_PAUSE_S / 4):
            is_owed = self._last is not None and not self._is_told
            quiet_s = time.monotonic() - max(self._last_line_at, self.started)
            if quiet_s >= (MIN_PAUSE_S if is_owed else self._pause_s):
                self._pause_s = self._pause_s if is_owed else min(2 * self._pause_s, LONGEST_PAUSE_S)
                self._tell(self._line())

    def stop(self) -> None:
        """Say that the first Ctrl+C was heard."""
        self.is_stopping = True
        if self.style == "lines":
            self.write("stopping with the best plan so far; Ctrl+C again aborts")

    def write(self, line: str) -> None:
        """One line as it stands: not wrapped, not coloured."""
        self.console.file.write(line + "\n")
        self.console.file.flush()

    def __enter__(self) -> "Reporter":
        if self.style == "live":
            self._live = Live(
                get_renderable=self._render_live, console=self.console, transient=True, refresh_per_second=8
            )
            self._live.start()
        if self.style == "lines":
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._ended.set()
        if self._ticker.is_alive():
            self._ticker.join()

    def _render_live(self) -> Text:
        frame = _FRAMES[int(10 * self.elapsed_s) % len(_FRAMES)]
        line = Text(frame, style="green")
        if self.is_stopping:
            line.append(" stopping, Ctrl+C again aborts\n", style="yellow")
        said = _render_progress(self._last, self.elapsed_s, width=self.console.width - len(frame))
        return line.append(said, style="default")
