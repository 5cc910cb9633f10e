"""How phases are timed on an accelerator, with events in the place of CUDA's."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from profiles.measure import clocks  # noqa: E402
from profiles.measure.clocks import MOST_HEAD_START_NS, CudaClock  # noqa: E402
from tests.own_time import tell_time  # noqa: E402


class Device:
    """Kernels of 1 us each, which the host asks for every 5 us."""

    def __init__(self) -> None:
        self.host_ns = self.free_ns = 0

    def launch(self, duration_ns: int) -> None:
        self.host_ns += 5_000
        self.free_ns = max(self.free_ns, self.host_ns) + duration_ns


class Event:
    device: Device

    def __init__(self, *, enable_timing: bool) -> None:
        self.at_ns = 0

    def record(self) -> None:
        self.at_ns = max(self.device.free_ns, self.device.host_ns)

    def synchronize(self) -> None:
        self.device.host_ns = max(self.device.host_ns, self.at_ns)

    def elapsed_time(self, end: "Event") -> float:
        return (end.at_ns - self.at_ns) / 1e6


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    def sleep(cycles: int) -> None:
        made.free_ns = max(made.free_ns, made.host_ns) + cycles  # at 1 GHz

    monkeypatch.setattr(torch.cuda, "Event", type("OnDevice", (Event,), {"device": made}))
    monkeypatch.setattr(torch.cuda, "_sleep", sleep, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: setattr(made, "host_ns", max(made.host_ns, made.free_ns)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(clock_rate=10**6), raising=False)
    tell_time(monkeypatch, "profiles.measure.clocks", perf_counter_ns=lambda: made.host_ns)
    return made


def time_kernels(device: Device, clock: CudaClock, *durations_ns: int) -> int:
    with clock.span("F"):
        for duration_ns in durations_ns:
            device.launch(duration_ns)
    clock.settle()
    return clock.samples["F"][-1][0]


def test_gaps_that_launches_ahead_would_fill_are_not_timed(device: Device):
    """Tests that a phase takes what its kernels take once launches have been seen twice: 320 us, and no gaps."""
    clock, durations = CudaClock(torch.device("cuda")), (*[1_000] * 20, *[30_000] * 10)
    for _ in range(2):
        assert time_kernels(device, clock, *durations) > 395_000
    for _ in range(2):
        assert time_kernels(device, clock, *durations) == 320_000
    assert clock.launch_ns == {"F": 150_000}


def test_a_phase_takes_at_least_what_the_host_takes_to_ask_for_it(device: Device):
    """Tests that kernels of 20 us in all, asked for in 100 us, take 100 us: a device that is always ahead waits."""
    clock = CudaClock(torch.device("cuda"))
    times = [time_kernels(device, clock, *[1_000] * 20) for _ in range(4)]
    assert times[2:] == [100_000, 100_000]


def test_host_and_card_are_told_apart(device: Device):
    """Tests that kernels of 20 us in all take the card 20 us and the host 100 us, and a step the longer of both."""
    clock = CudaClock(torch.device("cuda"), tells_host=True)
    for _ in range(4):
        for phase in "FO":
            with clock.span(phase):
                for _ in range(20):
                    device.launch(1_000)
        clock.settle()
    assert clock.samples["F"][-2:] == [(20_000, None)] * 2
    assert (clock.host_ns("F"), clock.host_ns("O")) == (100_000, None)
    assert clock.samples["O"][-1] == (100_000, None)


@pytest.mark.parametrize(("wake_ns", "least_ns"), [(95_000, 20_000), (40_000, 60_000)])
def test_waking_autograd_is_not_a_layers(device: Device, monkeypatch: pytest.MonkeyPatch, wake_ns: int, least_ns: int):
    """Tests that 20 us of kernels, asked for in 100 us, take what is left of these without autograd's waking."""
    monkeypatch.setattr(clocks, "time_empty_backward", lambda _: wake_ns)
    clock = CudaClock(torch.device("cuda"))
    for _ in range(4):
        with clock.span("B"):
            for _ in range(20):
                device.launch(1_000)
        clock.settle()
    assert clock.samples["B"][-1] == (least_ns, None)


def test_an_empty_backward_takes_time():
    """Tests that autograd's own time is found, where no kernel runs: microseconds."""
    assert 500 < clocks.time_empty_backward(torch.device("cpu")) < 5_000_000


def test_a_device_at_work_is_not_kept_waiting(device: Device):
    """Tests that phases follow each other without a pause between where the host is ahead, and that the host waits for
    the repetition before."""
    clock = CudaClock(torch.device("cuda"))
    for _ in range(6):
        with clock.span("F"):
            for _ in range(10):
                device.launch(30_000)
        clock.end_repetition()
    assert 200_000 < device.free_ns - device.host_ns <= 300_000
    clock.settle()
    assert device.free_ns < 6 * 300_000 + 2 * 60_000 + 75_000
    assert clock.samples["F"][-3:] == [(300_000, None)] * 3


def test_a_phase_behind_a_short_one_has_no_gaps(device: Device):
    """Tests that a device with little to do is given more before a phase whose launches take longer than that."""
    clock = CudaClock(torch.device("cuda"))
    for _ in range(6):
        with clock.span("W"):
            device.launch(20_000)
        with clock.span("F"):
            for duration_ns in (*[1_000] * 20, *[30_000] * 10):
                device.launch(duration_ns)
        clock.end_repetition()
    clock.settle()
    assert clock.samples["F"][-4:] == [(320_000, None)] * 4
    assert clock.samples["W"][-4:] == [(20_000, None)] * 4


def test_a_phase_that_takes_the_host_long_is_timed_as_it_comes(device: Device):
    """Tests that the device is not kept busy for longer than a limit: the samples are those of launches then."""
    clock, durations = CudaClock(torch.device("cuda")), [6_000] * (MOST_HEAD_START_NS // 5_000 + 1)
    first = time_kernels(device, clock, *durations)
    assert [time_kernels(device, clock, *durations) for _ in range(3)] == [first] * 3
