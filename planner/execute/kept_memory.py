"""What a process on a host lets go of stays with it, as what was on an accelerator stays with torch's allocator."""

import ctypes
import os
from typing import Any

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt(3): from how many free bytes at the end of the heap on they go back to the host (-1: never),
and how many blocks may lie outside the heap."""


def keep_freed_memory() -> bool:
    """Tell glibc's malloc so; gives whether it was told. An environment that sets malloc up itself has its way.

    By itself malloc gives blocks of megabytes back to the host, or does not, as the addresses of an iteration have it;
    what was given back comes again page by page, each filled with zeros: 13,700 faults in a backward of a ResNet-18's
    last layers, which then takes 38 ms instead of 17.
    """
    library: Any = ctypes.CDLL(None)
    is_set_up = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if is_set_up or not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(TRIM_THRESHOLD, -1) and library.mallopt(MMAP_MAX, 0))
