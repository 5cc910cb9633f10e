"""The most that a process holds from one moment to another: of an accelerator's memory, or of the host's pages."""

import ctypes
from pathlib import Path
from typing import Any

import torch

_STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin_peak(device: torch.device) -> int | None:
    """Bytes that are held now, from when on the peak counts; None on a host that does not tell.

    Pages of files are left out there: they can be dropped.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    try:
        _give_back()
        CLEAR.write_text("5", encoding="ascii")  # see proc(5)
        return _kibibytes("VmRSS") - _kibibytes("RssFile")
    except OSError:
        return None


def read_peak(device: torch.device) -> int | None:
    """The most bytes since; None on a host that does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        return _kibibytes("VmHWM") - _kibibytes("RssFile")
    except OSError:
        return None


def _kibibytes(name: str) -> int:
    """A line of the process's status, in bytes."""
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {name}")


def _give_back() -> None:
    """Free pages go back to the host, so that what is counted is held."""
    library: Any = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
