"""How much memory a process of a run really took, beside what the plan says (docs/reference/comparison.md)."""

import ctypes
import gc
from pathlib import Path
from typing import Any

import torch

from planner.execute.record.executed_timeline import MemoryUsed

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryMeter:
    """Counts from its making on. On a host without `/proc/self/clear_refs` nothing is known.

    There pages of files are left out: code that is run for the first time is nobody's model, and can be dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._files = 0
        """Bytes of files (code, mostly) that lay in the process's pages at the begin."""
        self._before = self._begin()

    @property
    def peak_bytes(self) -> int | None:
        """The most that was taken since; None: unknown."""
        if self._before is None:
            return None
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device)) - self._before
        return _kibibytes("VmHWM") - self._before - max(0, _kibibytes("RssFile") - self._files)

    def read(self) -> MemoryUsed | None:
        """What was taken since; to be called when no iteration is under way."""
        peak = self.peak_bytes
        if self._before is None or peak is None:
            return None
        if self.device.type == "cuda":
            return MemoryUsed(
                "cuda allocator",
                peak_bytes=peak,
                rest_bytes=int(torch.cuda.memory_allocated(self.device)) - self._before,
                reserved_bytes=int(torch.cuda.max_memory_reserved(self.device)),
            )
        before = self._before + max(0, _kibibytes("RssFile") - self._files)
        _give_back()
        rest = _kibibytes("VmRSS") - before
        return MemoryUsed("resident set", peak_bytes=peak, rest_bytes=rest, reserved_bytes=None)

    def _begin(self) -> int | None:
        if self.device.type == "cuda":
            gc.collect()  # what an earlier run left would be given back within this one
            torch.cuda.reset_peak_memory_stats(self.device)
            return int(torch.cuda.memory_allocated(self.device))
        try:
            _rehearse()
            _give_back()
            CLEAR.write_text("5", encoding="ascii")  # the peak is from now on; see proc(5)
            self._files = _kibibytes("RssFile")
            return _kibibytes("VmRSS")
        except OSError:
            return None


def _rehearse() -> None:
    """What torch loads at the first step of any training is not the model's: some 80 MiB on a host."""
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.AdamW([weight])
    hidden = torch.nn.functional.gelu(torch.ones(2, 8) @ weight)
    torch.autograd.backward(torch.nn.functional.layer_norm(hidden, (8,)).square().sum())
    optimizer.step()


def _kibibytes(name: str) -> int:
    """A line of the process's status, in bytes."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {name}")


def _give_back() -> None:
    """Free pages go back to the host, so that what is counted is held."""
    gc.collect()
    library: Any = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
