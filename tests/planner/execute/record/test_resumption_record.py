"""How a job continued, written down: tests of planner/execute/record/resumption_record.py."""

from pathlib import Path

from planner.execute.record.resumption_record import RECORD_VARIABLE, Resumption, read_resumption, record_resumption

RESUMED = Resumption(iteration=7, source="live copies", storage_bytes=0)


def test_what_is_written_is_read(tmp_path: Path):
    """Tests that the record comes back, that nothing half written stays, and that there is none before."""
    assert read_resumption(tmp_path) is None
    record_resumption(RESUMED, {RECORD_VARIABLE: str(tmp_path)})
    assert read_resumption(tmp_path) == RESUMED
    assert [path.name for path in tmp_path.iterdir()] == ["resumed.json"]


def test_nobody_who_listens_is_no_fault(tmp_path: Path):
    """Tests that a program that nobody keeps records of writes none."""
    record_resumption(RESUMED, {})
    record_resumption(RESUMED, {RECORD_VARIABLE: ""})
    assert list(tmp_path.iterdir()) == []
