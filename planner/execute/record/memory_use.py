"""How much memory a process of a run really took, beside what the plan says (docs/reference/comparison.md)."""

import gc

import torch

from planner.execute.record.executed_timeline import MemoryUsed
from profiles.measure.device_peak import begin_peak, give_back, kibibytes, read_peak


class MemoryMeter:
    """Counts from its making on. On a host without `/proc/self/clear_refs` nothing is known.

    There pages of files are left out: code that is run for the first time is nobody's model, and can be dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type != "cuda":
            _rehearse()
        gc.collect()  # what an earlier run left would be given back within this one
        self._before = begin_peak(device)

    @property
    def peak_bytes(self) -> int | None:
        """The most that was taken since; None: unknown."""
        peak = read_peak(self.device)
        return None if peak is None or self._before is None else peak - self._before

    def read(self) -> MemoryUsed | None:
        """What was taken since; to be called when no iteration is under way."""
        peak, before = self.peak_bytes, self._before
        if peak is None or before is None:
            return None
        if self.device.type == "cuda":
            return MemoryUsed(
                "cuda allocator",
                peak_bytes=peak,
                rest_bytes=int(torch.cuda.memory_allocated(self.device)) - before,
                reserved_bytes=int(torch.cuda.max_memory_reserved(self.device)),
            )
        gc.collect()
        give_back()
        rest = kibibytes("VmRSS") - kibibytes("RssFile") - before
        return MemoryUsed("resident set", peak_bytes=peak, rest_bytes=rest, reserved_bytes=None)


def _rehearse() -> None:
    """What torch loads at the first step of any training is not the model's: some 80 MiB on a host."""
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.AdamW([weight])
    hidden = torch.nn.functional.gelu(torch.ones(2, 8) @ weight)
    torch.autograd.backward(torch.nn.functional.layer_norm(hidden, (8,)).square().sum())
    optimizer.step()
