"""What a rank of our executor wrote with --trace, read member by member: tests of profiles/importers/own_trace.py."""

import json
from pathlib import Path

from tests.profiles.importers.test_trace_files import FILE_BYTES, MIB, read

OWN_READER = """\
import sys
from pathlib import Path
from profiles.importers.own_trace import read_own_trace
lines = lambda: Path("/proc/self/status").read_text().splitlines()
peak = lambda: next(int(line.split()[1]) for line in lines() if line.startswith("VmHWM:")) * 1024
before = peak()
trace = read_own_trace(Path(sys.argv[1]))
found = sum(map(len, trace.rows))
print(before, peak(), found)
"""


def write_own_trace(path: Path) -> int:
    """As our executor writes it, iterations of a thousand actions; how many actions."""
    rows = [[f"0{'FB'[m % 2]}{m // 2}", 10**18 + 1000 * m, 10**18 + 1000 * m + 900] for m in range(1000)]
    times = json.dumps({"taken_up_ns": [start for _, start, _ in rows], "begin_ns": 10**18})
    row = json.dumps(rows)
    count = FILE_BYTES // (len(row) + len(times))
    with path.open("w") as file:
        file.write('{"rank": 0, "device": "d0", "iterations": [' + row)
        file.writelines(f", {row}" for _ in range(count - 1))
        file.write(f'], "times": [{times}')
        file.writelines(f", {times}" for _ in range(count - 1))
        file.write("]}\n")
    return 1000 * count


def test_our_own_traces_take_less_than_themselves(tmp_path: Path):
    """Tests that of the executor's own trace 40 bytes are kept for an action, which takes some 75 in the file."""
    number = write_own_trace(tmp_path / "rank0.json")
    before, after, found = read(tmp_path / "rank0.json", reader=OWN_READER)
    assert found == number
    assert after - before < 16 * MIB + 0.8 * FILE_BYTES
    assert after < 1024 * MIB
