"""What a process lets go of stays with it, and has room for its like."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest

from planner.execute.run import kept_memory
from planner.execute.run.kept_memory import UNCACHED, restart_uncached, uncached_environment

PROGRAM = """
import ctypes
import resource
import sys

from planner.execute.run.kept_memory import release_freed_memory, keep_freed_memory

library = ctypes.CDLL(None)
library.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault of a huge page would stand for 512
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


PAGES = 76 * 2**20 // resource.getpagesize()
"""Of the blocks of a round."""


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
    assert faults < 100 < PAGES // 2 < by_itself


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_large_blocks_are_handed_back():
    """Tests that every block comes as new pages, also after larger ones that would else move the threshold."""
    told, faults = count_faults("hand back")
    assert told
    assert faults > PAGES // 2


@pytest.mark.parametrize("setting", ["MALLOC_TRIM_THRESHOLD_=131072", "GLIBC_TUNABLES=glibc.malloc.mmap_max=64"])
def test_who_sets_malloc_up_has_his_way(setting: str):
    """Tests that nothing is changed where the environment says how memory is to be handled."""
    kept, faults = count_faults("keep", environment=[setting])
    assert not kept
    assert faults > PAGES // 4


COMING_AGAIN = """
import ctypes
from pathlib import Path

from planner.execute.run.kept_memory import keep_freed_memory

def read_peak_kib():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

assert keep_freed_memory()
library, block, peaks = ctypes.CDLL(None), ctypes.c_void_p(), [read_peak_kib()]
for _ in range(12):
    assert not library.posix_memalign(ctypes.byref(block), 64, 16 * 2**20)  # as torch makes tensors
    ctypes.memset(block, 1, 16 * 2**20)
    library.free(block)
    peaks.append(read_peak_kib())
print(*((peak - peaks[0]) // 1024 for peak in (peaks[1], peaks[-1])))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the caches are glibc's")
def test_a_hole_has_room_for_its_like():
    """Tests that a block of 16 MiB that comes and goes takes its own room and no other's.

    How much more it takes where scraps are cached depends on the heap's first blocks: 16 to 112 MiB were seen. Of the
    first block a part may be room that imports left.
    """
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    (_, cached), (first, uncached) = (
        map(int, subprocess.check_output([sys.executable, "-c", COMING_AGAIN], env=bare | more).split())
        for more in ({}, {"GLIBC_TUNABLES": UNCACHED})
    )
    assert 0 < first <= uncached < 20
    assert cached >= uncached


SCRAPS = """
import ctypes
import sys

from planner.execute.run.kept_memory import keep_freed_memory

class Told(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("arena", "blocks", "scraps", *"abcdefg")]

library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes, library.mallinfo.restype = ctypes.c_void_p, [ctypes.c_void_p], Told
assert sys.argv[1] == "leave" or keep_freed_memory()
scraps = [library.malloc(40) for _ in range(400)]
for scrap in scraps:
    library.free(scrap)
print(library.mallinfo().scraps)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_scraps_are_joined_at_once():
    """Tests that freed scraps do not wait as they are, to be given to what would divide a hole."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told, by_itself = (
        int(subprocess.check_output([sys.executable, "-c", SCRAPS, word], env=bare | {"GLIBC_TUNABLES": UNCACHED}))
        for word in ("keep", "leave")
    )
    if not by_itself:
        pytest.skip("a glibc that keeps no scraps as they are")
    assert told == 0
    assert by_itself >= 300


OUTSIDE = """
import ctypes
import sys

from planner.execute.run.kept_memory import keep_freed_memory, outside_the_heap, release_freed_memory

class Told(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("arena", "blocks", "scraps", "outside", *"abcdef")]

library = ctypes.CDLL(None)
library.malloc.restype, library.mallinfo.restype = ctypes.c_void_p, Told
{"keep": keep_freed_memory, "hand back": release_freed_memory, "leave": lambda: False}[sys.argv[1]]()

def takes_outside():
    before = library.mallinfo().outside
    assert all(library.malloc(100_000) for _ in range(200))
    return library.mallinfo().outside - before > 100  # some find room that imports had

found = [takes_outside()]
with outside_the_heap():
    found.append(takes_outside())
print(*found, takes_outside())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_what_may_last_lies_outside_a_heap_that_keeps_all():
    """Tests that blocks of 100 kB have pages of their own meanwhile and only then, and nothing changes elsewhere."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = {
        word: subprocess.check_output([sys.executable, "-c", OUTSIDE, word], env=bare, text=True).split()
        for word in ("keep", "hand back", "leave")
    }
    assert found == {"keep": ["False", "True", "False"], "hand back": ["False"] * 3, "leave": ["False"] * 3}


HOLES = """
import ctypes
from pathlib import Path

from planner.execute.run.kept_memory import keep_freed_memory, outside_the_heap

assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(size) for size in [2**20] * 40]
for block in blocks[::2]:
    ctypes.memset(block, 1, 2**20)
    library.free(block)

def held_kib():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmRSS"))

full = held_kib()
with outside_the_heap():
    freed = full - held_kib()
found = [library.malloc(2**20) for _ in range(20)]
print(freed > 15 * 1024, sum(min(blocks) <= each <= max(blocks) for each in found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_holes_from_before_are_taken_for_good():
    """Tests that their pages go back to the host, and that no later block is scattered over them."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.check_output([sys.executable, "-c", HOLES], env=bare | {"GLIBC_TUNABLES": UNCACHED}, text=True)
    assert done.split() == ["True", "0"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_another_malloc_is_told_nothing(monkeypatch: pytest.MonkeyPatch):
    """Tests that a malloc which was loaded before glibc's is left alone: its blocks have other headers."""
    for name in [each for each in os.environ if each.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    places = iter([1, 2])
    monkeypatch.setattr(kept_memory, "_malloc_at", lambda library: next(places))
    assert not kept_memory.keep_freed_memory()
    assert next(places, None) is None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What processes are started anew as, without any setting or accelerator, as `python -u -m it x` on Linux."""
    found: list[list[str]] = []
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # and whatever is set meanwhile is taken back
    monkeypatch.setenv(kept_memory._RESTARTED, "")
    monkeypatch.delenv(kept_memory._RESTARTED)
    monkeypatch.setattr(kept_memory, "_ACCELERATORS", ())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-m", "it", "x"])
    monkeypatch.setattr(os, "execv", lambda program, arguments: found.append([program, *arguments]))
    return found


def test_a_program_starts_anew_once(started: list[list[str]], monkeypatch):
    """Tests that it does so as it was started, beside other tunables, and that malloc is still told the rest."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=4")
    restart_uncached("it")
    assert started == [[sys.executable, sys.executable, "-u", "-m", "it", "x"]]
    assert os.environ["GLIBC_TUNABLES"] == f"glibc.rtld.nns=4:{UNCACHED}"
    assert uncached_environment() == {}
    restart_uncached("it")
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # as glibc leaves it where a program has more rights than its user
    restart_uncached("it")
    assert len(started) == 1
    assert count_faults("keep", environment=[f"GLIBC_TUNABLES={UNCACHED}"])[0]


@pytest.mark.parametrize("reason", ["another program", "an accelerator", "malloc is set up", "another system"])
def test_a_program_does_not_start_anew(started: list[list[str]], monkeypatch, reason: str):
    """Tests that forks of other programs do not, nor what has a malloc of its own, or a card."""
    if reason == "an accelerator":
        monkeypatch.setattr(kept_memory, "_ACCELERATORS", [kept_memory.Path("/")])
    elif reason == "malloc is set up":
        monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    elif reason == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
    restart_uncached("other" if reason == "another program" else "it")
    assert not started
