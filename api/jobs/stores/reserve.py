"""Room on a disk that is kept for when it is full: to delete rows of a database, too, something must be written."""

import contextlib
import os
import shutil
import threading
from pathlib import Path

MOST_BYTES = 16 * 2**20
"""Enough for the log of any deletion."""

SHARE = 8
"""Of a small disk, at most one part in so many."""


class Reserve:
    """A file of no use but its size; a service makes it, and the one that deletes may remove it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "reserve"
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Make the file, or make it whole, as far as there is room."""
        with self._lock, contextlib.suppress(OSError):
            missing = min(self.size() - self._held(), shutil.disk_usage(self._folder).free)
            if missing > 0:
                with self._file.open("ab") as file:
                    file.write(os.urandom(missing))  # what file systems compress or leave out reserves nothing

    def give_up(self) -> bool:
        """Remove the file; False if there is none."""
        with self._lock:
            try:
                self._file.unlink()
            except OSError:
                return False
            return True

    def is_short(self) -> bool:
        """Whether the file is not whole, or would not fit a second time."""
        size = self.size()
        return self._held() < size or shutil.disk_usage(self._folder).free < size

    def size(self) -> int:
        """Bytes that are kept."""
        return min(MOST_BYTES, shutil.disk_usage(self._folder).total // SHARE)

    def _held(self) -> int:
        try:
            return self._file.stat().st_size
        except OSError:
            return 0
