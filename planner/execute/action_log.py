"""What a process is doing and when it did it: the action at hand for the watch, the times of all for the timeline."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, SupportsIndex

import torch


class Clock(Protocol):
    """Marks moments and says afterwards when they were."""

    def mark(self) -> Any:
        """Remember this moment."""

    def is_past(self, mark: Any) -> bool:
        """Whether it has been reached; may be asked from any thread."""

    def resolve(self, mark: Any) -> int:
        """When it was, in nanoseconds of this host's wall clock."""


class HostClock:
    """For work that is done when its call returns."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def mark(self) -> int:
        """Remember this moment."""
        return time.perf_counter_ns()

    def is_past(self, mark: int) -> bool:  # noqa: ARG002
        """Always: the call has returned."""
        return True

    def resolve(self, mark: int) -> int:
        """When it was."""
        return mark + self._offset


class CudaClock:
    """For work that is queued on the current stream: a mark is reached when all that was queued before it is done."""

    def __init__(self) -> None:
        self._base = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._base.record()
        self._base.synchronize()
        self._base_ns = time.time_ns()

    def mark(self) -> torch.cuda.Event:
        """Queue an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def is_past(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has got there."""
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def resolve(self, mark: torch.cuda.Event) -> int:
        """When it was reached; waits for it."""
        mark.synchronize()
        return self._base_ns + int(self._base.elapsed_time(mark) * 1e6)


class ActionLog:
    """The progress of one process. The watch reads `current` and `since` from another thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.current = ""
        """The cell at hand; empty between iterations."""
        self.is_computing = False
        """Whether it has what it needs; otherwise it waits."""
        self.since = time.monotonic()
        """When that began."""
        self.needs: Mapping[str, str] = {}
        """What a cell waits for until it has what it needs, as the end of a sentence."""
        self._spans: list[tuple[str, Any, Any]] = []
        self._taken_up: list[Any] = []
        self._last_note = clock.mark()

    def note(self, cell: str) -> None:
        """The process takes up a cell."""
        self._last_note = self.clock.mark()
        self.current, self.is_computing, self.since = cell, False, time.monotonic()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Everything the cell needs is there."""
        self.is_computing, self.since = True, time.monotonic()
        start = self.clock.mark()
        yield
        self._taken_up.append(self._last_note)
        self._spans.append((self.current, start, self.clock.mark()))
        self.is_computing, self.since = False, time.monotonic()

    def prolong(self) -> None:
        """What was computed since the last action ended belongs to it."""
        name, start, _ = self._spans[-1]
        self._spans[-1] = name, start, self.clock.mark()

    def state(self) -> tuple[str, bool]:
        """The cell at hand and whether it has what it needs; where work is queued, the first that is not done."""
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


class WatchedRow(list[Any]):
    """The cells of this process; notes each as torch's loop takes it up."""

    def __init__(self, cells: Sequence[Any], log: ActionLog) -> None:
        super().__init__(cells)
        self._log = log
        self.is_armed = False
        """The next iteration over the row is the loop itself; any other is only torch printing the table."""

    def __iter__(self) -> Iterator[Any]:
        return self._noting() if self.is_armed else super().__iter__()

    def _noting(self) -> Iterator[Any]:
        self.is_armed = False
        for cell in super().__iter__():
            self._log.note(str(cell))
            yield cell

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return list(super().__iter__())

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (list(super().__iter__()),)
