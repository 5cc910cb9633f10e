"""How phases are timed on an accelerator, with events in the place of CUDA's."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiles.measure import clocks, link_worker  # noqa: E402
from profiles.measure.clocks import MOST_HEAD_START_NS, CudaClock  # noqa: E402


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
    monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: made.host_ns)
    return made


def time_kernels(device: Device, clock: CudaClock, *, kernels: int) -> int:
    with clock.span("F"):
        for _ in range(kernels):
            device.launch(1_000)
    clock.settle()
    return clock.samples["F"][-1][0]


def test_small_kernels_are_not_timed_by_their_launches(device: Device):
    """Tests that a phase takes what its kernels take once launches have been seen: 20 us, not 100 us of asking."""
    clock = CudaClock(torch.device("cuda"))
    assert time_kernels(device, clock, kernels=20) > 90_000
    assert time_kernels(device, clock, kernels=20) == 20_000
    assert clock.launch_ns == {"F": 100_000}


def test_a_phase_that_takes_the_host_long_is_timed_as_it_comes(device: Device):
    """Tests that the device is not kept busy for longer than a limit: the samples are those of launches then."""
    clock = CudaClock(torch.device("cuda"))
    kernels = MOST_HEAD_START_NS // 5_000 + 1
    assert time_kernels(device, clock, kernels=kernels) == pytest.approx(
        time_kernels(device, clock, kernels=kernels), rel=0.01
    )


def test_messages_are_made_before_they_are_timed(monkeypatch: pytest.MonkeyPatch):
    """Tests that no allocation is timed with a transfer, and that accelerators are measured up to 256 MiB."""
    monkeypatch.setattr(link_worker.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(link_worker.distributed, "get_world_size", lambda: 2)
    options = link_worker._parser().parse_args(["links.json", "--device", "cuda"])
    assert link_worker.LinkSweep(options).sizes[-1] == 1 << 28
    options = link_worker._parser().parse_args(["links.json", "--repetitions", "3"])
    sweep = link_worker.LinkSweep(options)
    assert sweep.sizes[-1] == 1 << 24
    made: list[int] = []
    seen: list[tuple[int, Any]] = []
    monkeypatch.setattr(sweep, "_tensor", lambda count: made.append(count) or torch.zeros(count, dtype=torch.uint8))
    sweep._repeat(lambda: seen.append((len(made), sweep.buffers[0].numel())), 64, who=(0, 1))
    assert seen == [(2, 64)] * 5
