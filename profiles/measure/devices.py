"""What devices there are, what they are called, and what is free on them."""

import os

import torch

_MAX_CPU_DEVICES = 8
"""On a host, so many processes stand for devices unless another number is asked for."""


def has_cuda() -> bool:
    """Whether torch finds a CUDA device."""
    return torch.cuda.is_available()


def device_name(device: str) -> str:
    """What a document calls devices of this kind: `cpu`, or the accelerator's own name."""
    return str(torch.cuda.get_device_name()) if device == "cuda" else "cpu"


def count_devices(device: str) -> int:
    """All accelerators, or a process per core that is ours, up to `_MAX_CPU_DEVICES`."""
    if device == "cuda":
        return int(torch.cuda.device_count())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_CPU_DEVICES)


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on the device; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
