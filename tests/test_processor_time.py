"""What tests cost is counted, whichever process does the work."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.forking import Program, start_forker
from tests.processor_time import LEAST_S, processor_seconds, render

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


OUTER = """
import os
from tests.forking import Forker, Program

asked = Program(program={script!r}, environment=dict(os.environ))
assert Forker({address!r}).start(asked, files=[0, 1, 2]).wait(60) == 0
"""


def test_children_count():
    """Tests that what a child computes is counted once it has ended."""
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert processor_seconds() - before >= 0.25  # ticks are coarse


def test_forks_count(tmp_path: Path):
    """Tests that what a fork computes is counted, though it is another's child, and so is what its own fork does."""
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    forker = start_forker("os:getpid")
    inner.write_text(BUSY)
    outer.write_text(OUTER.format(script=str(inner), address=forker.address))
    for script in (inner, outer):
        before = processor_seconds()
        asked = Program(program=str(script), environment=dict(os.environ))
        assert forker.start(asked, files=[0, 1, 2]).wait(60) == 0
        assert processor_seconds() - before >= 0.25  # ticks are coarse


def test_the_table_has_files_first():
    """Tests that files come with the sum of their tests, the dearest first, and then the dearer of the tests."""
    table = render(Counter({"a.py::one": 1.0, "a.py::two[x]": LEAST_S / 2, "b.py::three": 2.0, "(start)": 0.5}))
    assert [line.split() for line in table.splitlines()] == [
        ["3.75", "all"], ["2.00", "b.py"], ["1.25", "a.py"], ["0.50", "(start)"],
        ["2.00", "b.py::three"], ["1.00", "a.py::one"],
    ]  # fmt: skip
