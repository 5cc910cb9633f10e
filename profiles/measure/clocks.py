"""Two clocks with one face: of the host (wall and thread), and of a CUDA device (events)."""

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

Samples = dict[str, list[tuple[int, int | None]]]
"""Per phase and repetition: wall time and thread time in nanoseconds."""


class HostClock:
    """Wall time and the time of the calling thread, which is not charged for others' work on the same core."""

    warm_up_s = 0.0
    """Beside the repetitions that do not count."""

    def __init__(self) -> None:
        self.samples: Samples = {}

    @contextmanager
    def span(self, phase: str, *, calls: int = 1) -> Iterator[None]:
        """Time what happens inside; it happens `calls` times."""
        thread, wall = time.thread_time_ns(), time.perf_counter_ns()
        yield
        wall, thread = time.perf_counter_ns() - wall, time.thread_time_ns() - thread
        self.samples.setdefault(phase, []).append((wall // calls, thread // calls))

    def host_ns(self, phase: str) -> int | None:  # noqa: ARG002
        """None: the host does the work itself."""
        return None

    def end_repetition(self) -> None:
        """All spans so far have ended."""

    def settle(self) -> None:
        """No work is pending on a host, so this returns at once."""

    def clear(self) -> None:
        """Forget everything: it was warm-up."""
        self.settle()
        self.samples.clear()


MOST_HEAD_START_NS = 100_000_000
"""Phases whose launches take longer are timed as they come."""

_EMPTY_BACKWARDS = 50
"""Of which the median counts."""

_PURE_LAUNCHES = 2
"""So often a phase is asked for on an idle device first, to learn how long the asking takes."""

_BACKWARD_PHASES = ("I", "B", "R")
"""Those that call autograd, whose thread is woken once for an action and not for every layer in it: of what asking for
a layer alone takes, waking it is not the layer's (0.4 ms per block of GPT-2 on an H200)."""


class CudaClock:
    """Events in the stream: launches run ahead as they do in training, and the device is never left without work.

    A device that has nothing to do waits for every launch, and a phase of small kernels is then torn by gaps that it
    need not have. So the host is ahead of the device, before every phase, by as long as its launches take: where what
    is queued takes less, the device is given something to do meanwhile. Where asking for a forward, a W or a step takes
    longer than the device does, nothing can hide it in the long run: then that is what it takes, unless the host's time
    is distinguished.
    """

    warm_up_s = 0.5
    """Under load the clocks of an accelerator fall: an H200 at its power limit runs at 1,365 to 1,620 of its 1,980 MHz.
    """

    def __init__(self, device: torch.device, *, tells_host: bool = False) -> None:
        """`tells_host`: samples are the device's alone, but for steps, and `host_ns` says what the host took."""
        self.samples: Samples = {}
        self.device, self.tells_host = device, tells_host
        self.launch_ns: dict[str, int] = {}
        """Per phase how long the host took at least to ask for a call of it."""
        self._asked_ns: dict[str, int] = {}
        """Of it what is the layer's."""
        self.device_ns: dict[str, int] = {}
        """Per phase how long the device took for a call of it at least."""
        self._wake_ns: int | None = None
        self._num_pure = Counter[str]()
        self._open = deque[_TimedPhase]()
        """Those that are not read yet; of the repetition before last none is."""
        self._num_repeated = 0
        self._is_free_at_ns = 0
        """When the device will have done what it was given, by the host's clock; rather too early."""

    @contextmanager
    def span(self, phase: str, *, calls: int = 1) -> Iterator[None]:
        """Time what happens inside; it happens `calls` times."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        if self._num_pure[phase] < _PURE_LAUNCHES:
            self._num_pure[phase] += 1
            torch.cuda.synchronize(self.device)
        else:
            self._get_ahead(calls * self.launch_ns[phase])
        begin.record()
        started = time.perf_counter_ns()
        yield
        asked_ns = (time.perf_counter_ns() - started) // calls
        self.launch_ns[phase] = min(asked_ns, self.launch_ns.get(phase, asked_ns))
        end.record()
        self._is_free_at_ns = max(self._is_free_at_ns, started) + calls * self.device_ns.get(phase, 0)
        self._open.append(_TimedPhase(phase, calls, begin, end))

    def _get_ahead(self, launches_ns: int) -> None:
        """Give the device something to do if it will not be busy for a little longer than the launches take."""
        now = time.perf_counter_ns()
        missing_ns = now + launches_ns * 5 // 4 - max(now, self._is_free_at_ns)
        if missing_ns > 0 and launches_ns <= MOST_HEAD_START_NS:
            kilohertz = torch.cuda.get_device_properties(self.device).clock_rate
            torch.cuda._sleep(missing_ns * kilohertz // 10**6)  # type: ignore[no-untyped-call]
            self._is_free_at_ns = max(now, self._is_free_at_ns) + missing_ns

    def end_repetition(self) -> None:
        """Wait for the end of the one before: the host is ahead, but not far."""
        before, self._num_repeated = self._num_repeated, len(self._open)
        if before:
            self._open[before - 1].end.synchronize()
            for _ in range(before):
                self._read(self._open.popleft())
            self._num_repeated = len(self._open)
            queued_ns = sum(span.calls * self.device_ns.get(span.phase, 0) for span in self._open)
            self._is_free_at_ns = min(self._is_free_at_ns, time.perf_counter_ns() + queued_ns)

    def settle(self) -> None:
        """Wait for the device and read the events."""
        torch.cuda.synchronize(self.device)
        while self._open:
            self._read(self._open.popleft())
        self._num_repeated = self._is_free_at_ns = 0

    def _read(self, span: "_TimedPhase") -> None:
        phase, took_ns = span.phase, round(span.begin.elapsed_time(span.end) * 1e6) // span.calls
        self.device_ns[phase] = min(took_ns, self.device_ns.get(phase, took_ns))
        asked_ns = self.launch_ns[phase] - (self._wake() // span.calls if phase in _BACKWARD_PHASES else 0)
        self._asked_ns[phase] = max(0, asked_ns)
        least_ns = 0 if self.tells_host and phase != "O" else asked_ns
        self.samples.setdefault(phase, []).append((max(took_ns, least_ns), None))

    def host_ns(self, phase: str) -> int | None:
        """What the host took at least to ask for a phase, autograd's waking aside; None: not distinguished."""
        return self._asked_ns.get(phase) if self.tells_host and phase != "O" else None

    def _wake(self) -> int:
        """How long autograd takes to do nothing."""
        if self._wake_ns is None:
            self._wake_ns = time_empty_backward(self.device)
        return self._wake_ns

    def clear(self) -> None:
        """Forget everything: it was warm-up."""
        self.settle()
        self.samples.clear()


class _TimedPhase(NamedTuple):
    phase: str
    calls: int
    begin: Any
    end: Any


def time_empty_backward(device: torch.device) -> int:
    """The median of calls of autograd that launch nothing, in ns."""
    leaf, gradient = torch.zeros(1, device=device, requires_grad=True), torch.ones(1, device=device)
    times = []
    for _ in range(_EMPTY_BACKWARDS):
        result = leaf.view(1)
        started = time.perf_counter_ns()
        torch.autograd.grad(result, leaf, gradient)
        times.append(time.perf_counter_ns() - started)
    return round(median(times))


def make_clock(device: torch.device, *, tells_host: bool = False) -> HostClock | CudaClock:
    """The clock that fits the device; `tells_host`: on an accelerator, what the host takes is distinguished."""
    return CudaClock(device, tells_host=tells_host) if device.type == "cuda" else HostClock()
