"""What the parent of a process tells of its end where nobody else sees its record."""

import os
import signal
from pathlib import Path

import pytest

from planner.execute.record.rank_record import keep_record
from planner.execute.record.resumption_record import RECORD_VARIABLE, Resumption, record_resumption
from planner.launch.pod_state import read_reports

RESUMPTION = Resumption(iteration=7, source="checkpoint", storage_bytes=5)


def run(folder: Path, report: Path, *, rank: int, end: int) -> None:
    """A parent and its child, which ends with a code, or by a signal if that is negative."""
    parent = os.fork()
    if not parent:
        keep_record(folder, rank=rank, device=f"d{rank}", host="n0", report=report)
        record_resumption(RESUMPTION, {RECORD_VARIABLE: str(folder)})
        if end < 0:
            os.kill(os.getpid(), -end)
        os._exit(end)
    os.waitpid(parent, 0)


@pytest.mark.parametrize("end", [0, 3, -signal.SIGKILL])
def test_an_end_is_added_to_the_report(end: int, tmp_path: Path):
    """Tests that both processes of a host add their ends to one file, and the first of them how the job went on."""
    for rank in (4, 5):
        run(tmp_path / "records", tmp_path / "report", rank=rank, end=end)
    lines = (tmp_path / "report").read_text().splitlines()
    assert sum(map(len, lines)) < 1_000  # eight processes fit into a termination message of 4,096 bytes
    assert len(lines) == 5
    records, resumption = read_reports(["what a library wrote", *lines[:-1]])
    assert resumption == RESUMPTION
    assert [(record.rank, record.state, record.code) for record in records] == [(4, "ended", end), (5, "running", 0)]
    records, _ = read_reports(lines)
    assert [(record.device, record.state, record.code) for record in records] == [
        ("d4", "ended", end),
        ("d5", "ended", end),
    ]
