"""Text that is put into a file: tests of planner/execute/record/put_whole.py."""

import errno
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


@pytest.mark.parametrize("is_linked", [False, True])
def test_an_inherited_pipe_is_written_to(tmp_path: Path, is_linked: bool):
    """Tests that /dev/stdout that is a pipe, and a shell's >(program), take the text, also through a link."""
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    if is_linked:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    put_whole(path, "text")
    assert (os.read(reader, 10), len([*tmp_path.iterdir()])) == (b"text", is_linked)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EPERM, errno.EACCES])
def test_a_file_that_cannot_be_replaced_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    """Tests that a mounted file, and somebody else's in a folder such as /tmp, take the text."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(Path, "replace", refuse)
    put_whole(tmp_path / "file", "new")
    assert ((tmp_path / "file").read_text(), [each.name for each in tmp_path.iterdir()]) == ("new", ["file"])


def test_a_file_in_a_read_only_folder_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a folder without the right to write gets no second file; these tests' superuser may write anywhere."""
    (tmp_path / "file").write_text("old")
    inode = (tmp_path / "file").stat().st_ino
    monkeypatch.setattr(os, "access", lambda asked, _: Path(asked) != tmp_path)
    put_whole(tmp_path / "file", "new")
    assert ((tmp_path / "file").read_text(), (tmp_path / "file").stat().st_ino) == ("new", inode)


def test_who_may_read_a_file_stays(tmp_path: Path):
    """Tests that a file that only its owner may read is not opened to others as it is replaced."""
    path = tmp_path / "losses"
    path.write_text("before")
    path.chmod(0o600)
    put_whole(path, "after")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o600)
