"""What a process really holds."""

import mmap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from planner.execute.record.memory_use import CLEAR, MemoryMeter  # noqa: E402 torch may be missing

MIB = 2**20


@pytest.mark.skipif(not CLEAR.exists(), reason="the host has no /proc/self/clear_refs")
def test_the_resident_set_is_counted_from_the_meter_on():
    """Tests that what was held before does not count, and what was let go counts for the peak only."""
    before = torch.ones(64 * MIB // 4)
    meter = MemoryMeter(torch.device("cpu"))
    held = torch.ones(32 * MIB // 4)
    for _ in range(2):
        gone = torch.ones(96 * MIB // 4)
        del gone
    used = meter.read()
    assert used is not None
    assert (used.source, used.reserved_bytes) == ("resident set", None)
    assert 127 * MIB <= used.peak_bytes <= 136 * MIB
    assert 31 * MIB <= used.rest_bytes <= 40 * MIB
    assert before[0] + held[0] == 2


@pytest.mark.skipif(not CLEAR.exists(), reason="the host has no /proc/self/clear_refs")
def test_code_that_is_run_for_the_first_time_is_nobodys_model():
    """Tests that pages of a file are not counted: a process that was forked off maps its libraries anew."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    meter = MemoryMeter(torch.device("cpu"))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 64 * MIB, access=mmap.ACCESS_READ) as code:
        touched = sum(code[at] for at in range(0, len(code), mmap.PAGESIZE))
        held = torch.ones(16 * MIB // 4)
        used = meter.read()
    assert used is not None
    assert touched > 0 < held[0]
    assert 15 * MIB <= used.peak_bytes <= 24 * MIB
    assert 15 * MIB <= used.rest_bytes <= 24 * MIB


def test_the_models_numbers_stay_what_they_are():
    """Tests that making a meter draws nothing from the generator that layers are made with."""
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    MemoryMeter(torch.device("cpu"))
    assert torch.equal(torch.randn(3), expected)


def test_a_host_that_does_not_tell_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Tests that nothing is said where the kernel does not begin its count anew."""
    monkeypatch.setattr("planner.execute.record.memory_use.CLEAR", tmp_path / "missing" / "clear_refs")
    assert MemoryMeter(torch.device("cpu")).read() is None
