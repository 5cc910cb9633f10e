"""Whether what a process on a host releases stays with it, as that on an accelerator does with torch's allocator."""

import ctypes
import os
from collections.abc import Mapping
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3): from how many free bytes at the end of the heap on they go back to the host (-1: never),
from how many bytes on blocks lie outside the heap, and how many may."""
_HANDED_BACK_BYTES = 2**20
"""From this size on blocks go back to the host at once, where they shall."""


def keep_freed_memory() -> bool:
    """Tell glibc's malloc so; gives whether it was told. An environment that sets malloc up itself has its way.

    By itself malloc gives blocks of megabytes back to the host, or does not, as the addresses of an iteration have it;
    what was given back comes again page by page, each filled with zeros: 13,700 faults in a backward of a ResNet-18's
    last layers, which then takes 38 ms instead of 17.
    """
    return _tell({TRIM_THRESHOLD: -1, MMAP_MAX: 0})


def release_freed_memory() -> bool:
    """Tell it to give large blocks back at once; gives whether it was told.

    Where weights come and go between others (`full_sharding.py`) a heap that keeps all has no room of the right size:
    eight layers of 18 MiB, of which a replica held 365 MiB, took 1,183.
    """
    return _tell({MMAP_THRESHOLD: _HANDED_BACK_BYTES})


def _tell(parameters: Mapping[int, int]) -> bool:
    library: Any = ctypes.CDLL(None)
    is_set_up = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if is_set_up or not hasattr(library, "mallopt"):
        return False
    return all(bool(library.mallopt(*each)) for each in parameters.items())
