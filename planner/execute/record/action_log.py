"""What a process is doing and when it did it: the current action for the watch, the times of all for the timeline."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class HostClock:
    """For work that is done when its call returns."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def mark(self) -> Any:
        """Remember this moment."""
        return time.perf_counter_ns()

    def is_past(self, mark: Any) -> bool:  # noqa: ARG002
        """Always: the call has returned."""
        return True

    def resolve(self, mark: Any) -> int:
        """The clock that all processes share, in nanoseconds, at a mark."""
        moment: int = mark + self._offset
        return moment

    def keep_pace(self, mark: Any) -> None:
        """It does: the call has returned."""


AHEAD = 2
"""So many actions the host may be ahead of the device: enough to hide launches. What is sent lives on until the send is
done, and what is received has its buffer from when the host asks: far ahead of the device it would hold all at once."""

_BASE_NS = 10**9
"""After so long moments are counted from a new one: the device tells distances as 32-bit floats of milliseconds, which
are off by a quarter of one after an hour, and by a microsecond at most after ten seconds."""


class _CountedEvent:
    """An event from which others are counted, itself counted from the one before."""

    def __init__(self, before: "_CountedEvent | None") -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()
        self.made = time.perf_counter_ns()
        self._before, self._ns = before, 0
        if before is None:
            self.event.synchronize()
            self._ns = time.time_ns()

    def when(self) -> int:
        """By the wall clock; it has to have been reached."""
        if self._before is not None:
            self._ns = self._before.when() + _elapsed_ns(self._before.event, self.event)
            self._before = None
        return self._ns


class _CudaMark(NamedTuple):
    """A moment on the current stream."""

    event: Any
    base: _CountedEvent


def _elapsed_ns(start: Any, end: Any) -> int:
    nanoseconds: int = round(start.elapsed_time(end) * 1e6)
    return nanoseconds


class CudaClock:
    """For work that is queued on the current stream: a mark is reached when all that was queued before it is done."""

    def __init__(self) -> None:
        self._base = _CountedEvent(None)
        self._ends = deque[_CudaMark]()

    def mark(self) -> Any:
        """Queue an event."""
        if time.perf_counter_ns() - self._base.made > _BASE_NS:
            self._base = _CountedEvent(self._base)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return _CudaMark(event, self._base)

    def is_past(self, mark: Any) -> bool:
        """Whether the device has got there."""
        return bool(mark.event.query())

    def resolve(self, mark: Any) -> int:
        """When it was reached; waits for it."""
        mark.event.synchronize()
        moment: int = mark.base.when() + _elapsed_ns(mark.base.event, mark.event)
        return moment

    def keep_pace(self, mark: Any) -> None:
        """Wait for the end of the action before the last `AHEAD`."""
        self._ends.append(mark)
        while len(self._ends) > AHEAD:
            self._ends.popleft().event.synchronize()


class ActionLog:
    """The progress of one process. The watch reads `current` and `since` from another thread."""

    def __init__(self, clock: HostClock | CudaClock) -> None:
        self.clock = clock
        self.current = ""
        """The current cell; empty between iterations."""
        self.is_computing = False
        """Whether it has what it needs; otherwise it waits."""
        self.since = time.monotonic()
        """When that began."""
        self.needs: Mapping[str, str] = {}
        """What a cell waits for until it has what it needs, as the end of a sentence."""
        self.on_note: Callable[[str], None] | None = None
        """Called with every cell that is taken up, before it is."""
        self._spans: list[tuple[str, Any, Any]] = []
        self._taken_up: list[Any] = []
        self._last_note = clock.mark()

    def note(self, cell: str) -> None:
        """The process takes up a cell."""
        if self.on_note is not None:
            self.on_note(cell)
        self._last_note = self.clock.mark()
        self.current, self.is_computing, self.since = cell, False, time.monotonic()

    def take_up(self, cell: str) -> Any:
        """`note` and what `computing` begins with at once, of a cell that has nothing to wait for; gives the start."""
        if self.on_note is not None:
            self.on_note(cell)
        self._last_note = mark = self.clock.mark()
        self.current, self.is_computing, self.since = cell, True, time.monotonic()
        return mark

    def follow(self, start: Any, cell: str) -> Any:
        """`end` of one cell and `take_up` of the next in one moment."""
        mark = self.end(start)
        if self.on_note is not None:
            self.on_note(cell)
        self.current, self.is_computing, self._last_note = cell, True, mark
        return mark

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Everything the cell needs is there."""
        self.is_computing, self.since = True, time.monotonic()
        start = self.clock.mark()
        yield
        self.end(start)

    def end(self, start: Any) -> Any:
        """It is computed, as far as the host knows; gives the mark."""
        end = self.clock.mark()
        self._taken_up.append(self._last_note)
        self._spans.append((self.current, start, end))
        self.clock.keep_pace(end)
        self.is_computing, self.since = False, time.monotonic()
        return end

    def prolong(self) -> None:
        """What was computed since the last action ended belongs to it."""
        name, start, _ = self._spans[-1]
        self._spans[-1] = name, start, self.clock.mark()

    def state(self) -> tuple[str, bool]:
        """The current cell and whether it has what it needs; where work is queued, the first that is not done."""
        for name, start, end in list(self._spans):
            if not self.clock.is_past(end):
                return name, self.clock.is_past(start)
        return self.current, self.is_computing

    def end_iteration(self) -> list[tuple[str, int, int]]:
        """Name, start and end (nanoseconds of the wall clock) of everything computed since the last call."""
        self.note("")
        spans, self._spans, self._taken_up = self._spans, [], []
        return [(name, self.clock.resolve(start), self.clock.resolve(end)) for name, start, end in spans]

    def taken_up(self) -> list[int]:
        """When each action since the last `end_iteration` was taken up: from then until its start it waited."""
        return [self.clock.resolve(mark) for mark in self._taken_up]
