"""Text that is put into a file: tests of planner/execute/record/put_whole.py."""

import os
from pathlib import Path

import pytest

from planner.execute.record.put_whole import put_whole


def test_what_stood_there_stays_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a text that cannot be written whole changes nothing, and that a link's file gets it."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    whole = Path.write_text

    def cut_off(self: Path, text: str, encoding: str) -> int:
        whole(self, text[:1], encoding=encoding)
        raise OSError("full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", cut_off)
        with pytest.raises(OSError, match="full"):
            put_whole(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text() == "old"
    put_whole(tmp_path / "link", "new")
    assert ((tmp_path / "file").read_text(), (tmp_path / "link").is_symlink()) == ("new", True)


def test_a_pipe_is_written_to(tmp_path: Path):
    """Tests that what is no file stays what it is."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    put_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
