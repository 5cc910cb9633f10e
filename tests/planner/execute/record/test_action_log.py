"""Clocks of accelerators, with events that behave as CUDA's do: distances are 32-bit floats of milliseconds."""

import random
import struct
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planner.execute.record import action_log  # noqa: E402
from planner.execute.record.action_log import AHEAD, ActionLog, CudaClock  # noqa: E402
from tests.own_time import tell_time  # noqa: E402


class Device:
    """An accelerator whose queue is `behind_ns` behind the host; time passes when it is told."""

    def __init__(self, *, behind_ns: int = 0) -> None:
        self.now_ns, self.behind_ns = 10**9, behind_ns
        self.waits: list[int] = []
        """When the host began to wait for an event that was not reached."""


class Event:
    """A moment of the device's queue."""

    device: Device

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ns = 0

    def record(self) -> None:
        self.at_ns = self.device.now_ns + self.device.behind_ns

    def query(self) -> bool:
        return self.device.now_ns >= self.at_ns

    def synchronize(self) -> None:
        if not self.query():
            self.device.waits.append(self.device.now_ns)
            self.device.now_ns = self.at_ns

    def elapsed_time(self, end: "Event") -> float:
        milliseconds: float = struct.unpack("f", struct.pack("f", (end.at_ns - self.at_ns) / 1e6))[0]
        return milliseconds


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In the place of CUDA, and of the host's clocks."""
    made = Device()
    monkeypatch.setattr(torch.cuda, "Event", type("OnDevice", (Event,), {"device": made}))
    now = {"perf_counter_ns": lambda: made.now_ns, "time_ns": lambda: made.now_ns}
    tell_time(monkeypatch, "planner.execute.record.action_log", **now)
    return made


def test_the_clock_is_as_exact_after_hours(device: Device):
    """Tests that a moment is told to 50 us after three hours of iterations, where one distance is off by more."""
    clock, draw = CudaClock(), random.Random(1)
    first = clock.mark()
    for _ in range(3 * 3600 // 5):
        device.now_ns += draw.randrange(4 * 10**9, 6 * 10**9)
        last: Any = clock.mark()
        assert abs(clock.resolve(last) - device.now_ns) < 50_000
    whole = first.event.elapsed_time(last.event) * 1e6
    assert abs(whole - (device.now_ns - 10**9)) > 50_000, "events that are that exact would prove nothing"


def test_marks_before_and_after_a_new_base_are_both_told(device: Device):
    """Tests that a mark keeps the moment from which it is counted, and that nothing is resolved out of order."""
    clock = CudaClock()
    early, at = clock.mark(), device.now_ns
    device.now_ns += 3 * 10**9
    late = clock.mark()
    device.now_ns += 3 * 10**9
    latest = clock.mark()
    assert [clock.resolve(mark) - at for mark in (latest, early, late)] == [6 * 10**9, 0, 3 * 10**9]


def test_the_host_does_not_run_ahead_of_the_device(device: Device):
    """Tests that at most `AHEAD` actions are queued: what they send can be freed while the iteration goes on."""
    log = ActionLog(CudaClock())
    running: list[Event] = []
    for number in range(6):
        device.behind_ns += 10**6  # every action takes a millisecond of the device, and nothing of the host
        log.note(f"0F{number}")
        with log.computing():
            pass
        running.append(log._spans[-1][2].event)
        assert sum(not event.query() for event in running) <= AHEAD
        device.behind_ns = max(0, running[-1].at_ns - device.now_ns)
    assert device.waits


def test_one_moment_ends_an_action_and_takes_up_the_next():
    """Tests that actions that wait for nothing touch, that each was taken up when it began, and that all are noted."""
    log = ActionLog(action_log.HostClock())
    noted: list[str] = []
    log.on_note = noted.append
    start = log.take_up("0F0")
    assert log.state() == ("0F0", True)
    start = log.follow(start, "0B0")
    assert log.state() == ("0B0", True)
    log.end(start)
    assert log.state() == ("0B0", False)
    taken_up = log.taken_up()
    (first, begin, middle), (second, also_middle, end) = log.end_iteration()
    assert (first, second, noted) == ("0F0", "0B0", ["0F0", "0B0", ""])
    assert begin <= middle == also_middle <= end
    assert taken_up == [begin, middle]
