"""Traces of any length in little memory: made on the fly, read in a process of their own, whose peak is held."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.long_runs import shortened

ROOT = Path(__file__).parents[3]
MIB = 2**20
FILE_BYTES = shortened(16 * MIB, whole=1024 * MIB)
READER = """\
import sys
from pathlib import Path
from profiles.importers.profiler_events import read_profiled_rank
lines = lambda: Path("/proc/self/status").read_text().splitlines()
peak = lambda: next(int(line.split()[1]) for line in lines() if line.startswith("VmHWM:")) * 1024
before = peak()
rank = read_profiled_rank(Path(sys.argv[1]))
found = sum(map(len, rank.rows if rank.unmarked is None else rank.unmarked.iterations))
print(before, peak(), found)
"""


def operators(start: float, *, number: int, is_marked: bool) -> Iterator[dict[str, object]]:
    """A forward and its backward of 40 operators each, as long in the file as torch 2.13 writes them."""
    told = {"External id": number, "Record function id": 0, "Fwd thread id": 0, "Input Dims": [[16, 256], [256, 256]]}
    told |= {"Input type": ["float", "float"], "Input Strides": [[256, 1], [1, 256]], "Concrete Inputs": ["", ""]}
    for half, name in enumerate(("aten::linear", "autograd::engine::evaluate_function: AddmmBackward0")):
        begin = start + 500 * half
        if is_marked:
            yield {"ph": "X", "cat": "user_annotation", "name": f"PP:0{'FB'[half]}0", "ts": begin, "dur": 450, "tid": 1}
        for place in range(40):
            arguments = told | {"Sequence number": 40 * number + (39 - place if half else place), "Fwd thread id": half}
            yield {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1 + half, "ts": begin + 10 * place} | {
                "dur": 9.5,
                "args": arguments,
            }


def write_trace(path: Path, *, is_marked: bool) -> int:
    """A rank's iterations until the file is as long as it shall be; how many."""
    number, step = 0, 1000.0
    with path.open("w") as file:
        file.write('{"distributedInfo": {"rank": 0}, "traceEvents": [\n')
        while file.tell() < FILE_BYTES:
            mark = {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                "ts": step * number,
                "dur": 999,
            }
            events = [mark, *operators(step * number + 1, number=number, is_marked=is_marked)]
            file.write(",\n".join(map(json.dumps, events)) + ",\n")
            number += 1
        file.write(json.dumps({"ph": "i", "name": "end", "ts": step * number}) + "]}")
    return number


def read(path: Path, *, reader: str = READER) -> list[int]:
    """Peak before and after in bytes, and actions found, by a reader of its own."""
    command = [sys.executable, "-c", reader, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-600:]
    return [*map(int, done.stdout.split())]


def test_marked_traces_take_little_room(tmp_path: Path):
    """Tests that a trace whose actions are marked takes a few chunks and a byte in fifty."""
    number = write_trace(tmp_path / "t.json", is_marked=True)
    before, after, found = read(tmp_path / "t.json")
    assert found == 2 * number
    assert after - before < 32 * MIB + FILE_BYTES // 50
    assert after < 1024 * MIB


def test_unmarked_traces_take_little_more_than_half_of_themselves(tmp_path: Path):
    """Tests that what is kept of operators is at most 0.55 bytes per byte of the file."""
    number = write_trace(tmp_path / "t.json", is_marked=False)
    before, after, found = read(tmp_path / "t.json")
    assert found == 2 * number
    assert after - before < 16 * MIB + 0.55 * FILE_BYTES
    assert after < 1024 * MIB
