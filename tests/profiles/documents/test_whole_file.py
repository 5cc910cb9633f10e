"""Tests of profiles/documents/whole_file.py: what stood there stays until the new one is on the disk."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.documents import whole_file
from profiles.documents.whole_file import write_whole


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path):
    """Tests that a process that is killed while it writes leaves the document that stood there."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    if (child := os.fork()) == 0:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        write_whole(path, "new" * 100_000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that without room the error is raised, the document stands as before, and nothing is left beside it."""
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert (path.read_text(), [each.name for each in tmp_path.iterdir()]) == ("old", ["plan.json"])


def test_links_rights_and_names_stay(tmp_path: Path):
    """Tests that a link leads where it led, the file keeps its rights, and new ones get those of any new file."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real.json")
    write_whole(link, "\u7b56")
    assert (link.is_symlink(), real.read_bytes(), real.stat().st_mode & 0o777) == (True, "\u7b56".encode(), 0o640)
    write_whole(tmp_path / "new.json", "new")
    (tmp_path / "other.json").touch()
    assert (tmp_path / "new.json").stat().st_mode == (tmp_path / "other.json").stat().st_mode
    assert len([*tmp_path.iterdir()]) == 4


def test_pipes_take_what_is_written(tmp_path: Path):
    """Tests that a pipe gets the text and stays a pipe, so that /dev/stdout and process substitution work."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert (os.read(reader, 100), pipe.is_fifo()) == (b"text", True)
    os.close(reader)


def test_inherited_pipes_take_what_is_written():
    """Tests that a pipe that a shell made, which /proc names as no file, gets the text."""
    reader, writer = os.pipe()
    write_whole(Path(f"/dev/fd/{writer}"), "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    os.close(writer)


def refused(code: int) -> Callable[..., None]:
    def replace(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return replace


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EPERM])
def test_a_file_that_cannot_be_replaced_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    """Tests that a mounted file, and somebody else's in a folder such as /tmp, take the text as they did before."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(whole_file.Path, "replace", refused(code))
    write_whole(path, "new")
    assert (path.read_text(), [each.name for each in tmp_path.iterdir()]) == ("new", ["plan.json"])


def test_rights_are_asked_before_a_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a file without the right to write is not replaced, and a folder without it gets no second file."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    inode = path.stat().st_ino
    for denied in (tmp_path, path):  # of the second, anybody but these tests' superuser gets PermissionError
        monkeypatch.setattr(os, "access", lambda asked, _, denied=denied: Path(asked) != denied)
        write_whole(path, f"not {denied.name}")
        assert (path.read_text(), path.stat().st_ino) == (f"not {denied.name}", inode)
