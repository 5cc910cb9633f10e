"""Whether what a process on a host releases stays with it, as that on an accelerator does with torch's allocator."""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, FAST_MAX = -1, -3, -4, 1
"""Parameters of mallopt(3): from how many free bytes at the end of the heap on they go back to the host (-1: never),
from how many bytes on blocks lie outside the heap, how many may, and up to how many free ones are not joined."""
_HANDED_BACK_BYTES, _LASTING_BYTES = 2**20, 2**16
"""From these sizes on blocks go back to the host at once, where they shall, and what may last has no hole's place."""
_told: dict[int, int] = {}
"""What malloc was told here last, by parameter."""
_TUNABLES, UNCACHED = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"
"""The variable that glibc reads as a process starts, and a malloc without caches of scraps."""
_RESTARTED = "PIPEPLAN_MALLOC_TRIED"
"""Set for good: glibc itself takes its variable away where a program has more rights than who starts it."""
_ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""There the memory that counts is not the host's, and its pace may be."""


def restart_uncached(program: str) -> None:
    """Start this process anew, once, as `python -m program` with a malloc that joins free blocks.

    Nothing happens where it was started otherwise, where the environment sets malloc up, or beside an accelerator.
    Torch's tensors lie at multiples of 64, for which malloc cuts scraps off their ends. A thread's cache keeps those
    from being joined again, so that no hole has room for its like: a Llama's three stages took 142 MiB instead of 97.
    """
    more = {} if _RESTARTED in os.environ else uncached_environment()
    is_mine = sys.platform == "linux" and ("-m", program) in pairwise(sys.orig_argv)
    if more and is_mine and not any(map(Path.exists, _ACCELERATORS)):
        os.environ.update(more, **{_RESTARTED: "1"})
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def uncached_environment() -> dict[str, str]:
    """The variable for such a process; nothing where the environment has it, or sets malloc up otherwise."""
    said = os.environ.get(_TUNABLES, "")
    return {} if UNCACHED in said or _is_set_up() else {_TUNABLES: ":".join(filter(None, [said, UNCACHED]))}


def keep_freed_memory() -> bool:
    """Tell glibc's malloc so; gives whether it was told. An environment that sets malloc up itself has its way.

    By itself malloc gives blocks of megabytes back to the host, or does not, as the addresses of an iteration have it;
    what was given back comes again page by page, each filled with zeros: 13,700 faults in a backward of a ResNet-18's
    last layers, which then takes 38 ms instead of 17. Scraps are joined at once: beside a tensor's hole they would be
    given to what lives longer, and the hole has no room for its like then.
    """
    return _tell({TRIM_THRESHOLD: -1, MMAP_MAX: 0, FAST_MAX: 0})


def release_freed_memory() -> bool:
    """Tell it to give large blocks back at once; gives whether it was told.

    Where weights come and go between others (`full_sharding.py`) a heap that keeps all has no room of the right size:
    eight layers of 18 MiB, of which a replica held 365 MiB, took 1,183.
    """
    return _tell({MMAP_THRESHOLD: _HANDED_BACK_BYTES})


@contextmanager
def outside_the_heap() -> Iterator[None]:
    """Meanwhile large blocks lie outside a heap that keeps what is freed: whatever of them stays divides no hole of it.

    For the making of layers and iterations up to the first update, whose states come when all else has come and gone.
    """
    is_kept = _told.get(MMAP_MAX) == 0 and _tell({MMAP_THRESHOLD: _LASTING_BYTES, MMAP_MAX: 2**16})
    if is_kept:
        _take_holes()
    try:
        yield
    finally:
        if is_kept:
            _take_holes()
            _tell({MMAP_MAX: 0})


def _take_holes() -> None:
    """Take all for good: nothing goes outside while one fits; of 44 MiB in use among them a process held 51 to 57."""
    library: Any = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.argtypes, size, width = (ctypes.c_void_p,), 2**34, ctypes.sizeof(ctypes.c_size_t)
    library.sbrk.restype, library.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
    library.malloc_trim(0)
    end = library.sbrk(0)
    while size >= _LASTING_BYTES:
        block = library.malloc(size)
        is_outside = bool(block) and ctypes.c_size_t.from_address(block - width).value & 2
        if not block or is_outside or library.sbrk(0) != end:  # no hole fits
            library.free(block)
            size //= 2


def _tell(parameters: Mapping[int, int]) -> bool:
    library: Any = ctypes.CDLL(None)
    if _is_set_up() or not hasattr(library, "mallopt") or _malloc_at(library) != _malloc_at(ctypes.CDLL("libc.so.6")):
        return False  # another's malloc was loaded before glibc's
    _told.update(parameters)
    return all(bool(library.mallopt(*each)) for each in parameters.items())


def _malloc_at(library: ctypes.CDLL) -> int | None:
    return ctypes.cast(library.malloc, ctypes.c_void_p).value


def _is_set_up() -> bool:
    """Whether the environment says more of malloc than we would."""
    said = os.environ.get(_TUNABLES, "").replace(UNCACHED, "")
    return "malloc" in said or any(name.startswith("MALLOC_") for name in os.environ)
