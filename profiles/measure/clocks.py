"""Two clocks with one face: of the host (wall and thread), and of a CUDA device (events)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Samples = dict[str, list[tuple[int, int | None]]]
"""Per phase and repetition: wall time and thread time in nanoseconds."""


class HostClock:
    """Wall time and the time of the calling thread, which is not charged for others' work on the same core."""

    def __init__(self) -> None:
        self.samples: Samples = {}

    @contextmanager
    def span(self, phase: str, *, calls: int = 1) -> Iterator[None]:
        """Time what happens inside; it happens `calls` times."""
        thread, wall = time.thread_time_ns(), time.perf_counter_ns()
        yield
        wall, thread = time.perf_counter_ns() - wall, time.thread_time_ns() - thread
        self.samples.setdefault(phase, []).append((wall // calls, thread // calls))

    def settle(self) -> None:
        """All spans so far have ended."""

    def clear(self) -> None:
        """Forget everything: it was warm-up."""
        self.settle()
        self.samples.clear()


class CudaClock:
    """Events in the stream, read only when a repetition is over: launches run ahead as they do in training."""

    def __init__(self, device: torch.device) -> None:
        self.samples: Samples = {}
        self.device = device
        self._open: list[tuple[str, int, Any, Any]] = []

    @contextmanager
    def span(self, phase: str, *, calls: int = 1) -> Iterator[None]:
        """Time what happens inside; it happens `calls` times."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._open.append((phase, calls, begin, end))

    def settle(self) -> None:
        """Wait for the device and read the events."""
        torch.cuda.synchronize(self.device)
        for phase, calls, begin, end in self._open:
            nanoseconds = round(begin.elapsed_time(end) * 1e6)
            self.samples.setdefault(phase, []).append((nanoseconds // calls, None))
        self._open.clear()

    def clear(self) -> None:
        """Forget everything: it was warm-up."""
        self.settle()
        self.samples.clear()


def make_clock(device: torch.device) -> HostClock | CudaClock:
    """The clock that fits the device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
