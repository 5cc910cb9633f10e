"""Processes that measure are forks, and do what `python -m` would do where they are started."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.measure import host_processes
from profiles.measure.host_processes import PAUSE_S, HostProcesses

PROGRAM = """
import os
import sys
from pathlib import Path

import beside

assert b"SETTING=on" in Path("/proc/self/environ").read_bytes()  # as its interpreter found it
assert "SETTING" not in os.environ
print(__name__, sys.argv, os.environ["RANK"], os.environ["OMP_NUM_THREADS"], os.getcwd(), "colorsys" in sys.modules)
print(beside.WORD, file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""

BESIDE = """
WORD = "left alone"


def set_up():
    global WORD
    WORD = "set up"
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostProcesses]:
    """Without torch, in a folder with a program."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text(BESIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host_processes, "IMPORTED", ("fractions",))
    with HostProcesses(also=["colorsys"], prepare="beside:set_up", environment={"SETTING": "on"}) as host:
        yield host


def test_ranks_are_what_torchrun_would_start(host: HostProcesses, tmp_path: Path):
    """Tests that they are main modules, set up, with arguments, ranks, threads, folder, imports, and end by a code."""
    ranks = host.start_ranks("program", "3", count=2, folder=tmp_path)
    for rank, process in enumerate(ranks):
        while process.poll() is None:
            time.sleep(PAUSE_S)
        assert process.poll() == 3
        said = f"__main__ ['{tmp_path}/program.py', '3'] {rank} 1 {tmp_path} True\nset up\n"
        assert sorted((tmp_path / f"log{rank}").read_text().splitlines()) == sorted(said.splitlines())


def test_a_process_can_be_ended(host: HostProcesses):
    """Tests that one that waits for ever is gone once it has been killed, its pipes with it."""
    never, orders = os.pipe()
    heard, said = os.pipe()
    process = host.start("code", environment={}, files=(never, said, said))
    os.close(said)
    assert os.read(heard, 1)
    assert process.poll() is None
    process.kill()
    assert process.poll() == -signal.SIGKILL
    while os.read(heard, 1 << 16):
        pass
    for each in (never, orders, heard):
        os.close(each)


def test_long_orders_arrive(host: HostProcesses, tmp_path: Path):
    """Tests that an argument may be longer than any that a program is started with."""
    (tmp_path / "program.py").write_text("import sys\nprint(len(sys.argv[1]))\n")
    (process,) = host.start_ranks("program", "x" * 10**6, count=1, folder=tmp_path)
    while process.poll() is None:
        time.sleep(PAUSE_S)
    assert (tmp_path / "log0").read_text() == "1000000\n"


def test_a_broken_environment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that where nothing can be started, because a module cannot be imported, that is an error and no wait."""
    monkeypatch.setattr(host_processes, "IMPORTED", ())
    with HostProcesses(also=["no_such_module"]) as host, pytest.raises(ValueError, match="see above"):
        host.start_ranks("program", count=1, folder=tmp_path)
