"""The decorator of every compiled function: cached on disk under a name that depends on all compiled sources.

numba notices when the file of a cached function changes, but not when a function that it calls does; a cache folder
named after the content of all kernel files can never be stale.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

_SOURCES = (
    "annealing.py",
    "apart.py",
    "compiled.py",
    "cuts.py",
    "joint/floors.py",
    "joint/sequencing.py",
    "joint/shaving.py",
    "joint/tree.py",
    "joint/windows.py",
    "kernels.py",
    "moves.py",
    "orders.py",
    "partition/kernels.py",
    "partition/steady_kernels.py",
    "policies.py",
    "words.py",
    "quick_floors.py",
)


@cache
def cache_folder() -> Path:
    """Where compiled functions are kept: in the user's cache folder, or in a temporary one if that is read-only."""
    digest = hashlib.sha256(numba.__version__.encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "pipeplan" / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.gettempdir()) / f"pipeplan-{os.getuid()}" / folder.name


def kernel(function: Callable[..., Any]) -> Any:
    """`numba.njit`, cached on disk and without the interpreter lock, so that two searches run on two cores."""
    config: Any = numba.config
    before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = before
