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


MOST_HEAD_START_NS = 20_000_000
"""Phases whose launches take longer are timed as they come."""

PURE_LAUNCHES = 2
"""So often a phase is asked for on an idle device first, to learn how long the asking takes."""


class CudaClock:
    """Events in the stream, read only when a repetition is over: launches run ahead as they do in training.

    A device that has nothing to do waits for every launch, and a phase of small kernels is then torn by gaps that it
    need not have. So before a phase the device is kept busy for as long as its launches take. Where asking for a phase
    takes longer than the phase itself, nothing can hide it in the long run: then that is what the phase takes.
    """

    def __init__(self, device: torch.device) -> None:
        self.samples: Samples = {}
        self.device = device
        self.launches: dict[str, list[int]] = {}
        """Per phase how long the host took to ask for a call of it while the device had nothing else to do."""
        self._open: list[tuple[str, int, Any, Any]] = []

    @contextmanager
    def span(self, phase: str, *, calls: int = 1) -> Iterator[None]:
        """Time what happens inside; it happens `calls` times."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        launches = self.launches.setdefault(phase, [])
        is_pure = len(launches) < PURE_LAUNCHES
        if is_pure:
            torch.cuda.synchronize(self.device)
        else:
            self._keep_busy(calls * min(launches))
        begin.record()
        started = time.perf_counter_ns()
        yield
        if is_pure:
            launches.append((time.perf_counter_ns() - started) // calls)
        end.record()
        self._open.append((phase, calls, begin, end))

    def _keep_busy(self, head_start_ns: int) -> None:
        if 0 < head_start_ns <= MOST_HEAD_START_NS:
            kilohertz = torch.cuda.get_device_properties(self.device).clock_rate
            torch.cuda._sleep(head_start_ns * 5 // 4 * kilohertz // 10**6)  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Wait for the device and read the events."""
        torch.cuda.synchronize(self.device)
        for phase, calls, begin, end in self._open:
            nanoseconds = round(begin.elapsed_time(end) * 1e6)
            self.samples.setdefault(phase, []).append((max(nanoseconds // calls, min(self.launches[phase])), None))
        self._open.clear()

    def clear(self) -> None:
        """Forget everything: it was warm-up."""
        self.settle()
        self.samples.clear()


def make_clock(device: torch.device) -> HostClock | CudaClock:
    """The clock that fits the device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
