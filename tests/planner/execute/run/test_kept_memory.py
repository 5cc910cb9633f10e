"""What a process lets go of stays with it."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

PROGRAM = """
import ctypes
import resource
import sys

from planner.execute.run.kept_memory import release_freed_memory, keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
tell = {"keep": keep_freed_memory, "hand back": release_freed_memory, "leave": lambda: False}[sys.argv[1]]
kept = tell()
faults = []
for _ in range(12):  # blocks lie elsewhere in the first, as the pieces of others have it
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (24, 9, 40, 3):
        block = ctypes.c_void_p(library.malloc(size * 2**20))
        ctypes.memset(block, 1, size * 2**20)
        library.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, *faults)
"""


def count_faults(*arguments: str, environment: Sequence[str] = ()) -> tuple[bool, int]:
    """Whether malloc was told, and the page faults of the last of some rounds of blocks that come and go."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told = dict(setting.split("=", 1) for setting in environment)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=bare | told, capture_output=True, text=True, check=True
    )
    kept, *faults = done.stdout.split()
    return kept == "True", int(faults[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_blocks_that_come_again_cost_no_page_faults():
    """Tests that only those of a malloc that was left alone are handed back and filled with zeros anew."""
    (kept, faults), (_, by_itself) = count_faults("keep"), count_faults("leave")
    assert kept
    assert faults < 100 < 10_000 < by_itself


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_large_blocks_are_handed_back():
    """Tests that every block comes as new pages, also after larger ones that would else move the threshold."""
    told, faults = count_faults("hand back")
    assert told
    assert faults > 10_000


@pytest.mark.parametrize("setting", ["MALLOC_TRIM_THRESHOLD_=131072", "GLIBC_TUNABLES=glibc.malloc.mmap_max=64"])
def test_who_sets_malloc_up_has_his_way(setting: str):
    """Tests that nothing is changed where the environment says how memory is to be handled."""
    kept, faults = count_faults("keep", environment=[setting])
    assert not kept
    assert faults > 5_000
