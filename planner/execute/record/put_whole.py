"""Puts text into a file, whole at any time: a kill leaves what stood there before."""

import errno
import os
from pathlib import Path

_FIXED = (errno.EBUSY, errno.EPERM, errno.EACCES)
"""What is said of a file that may be written but not replaced: it is a mount, or another user's in /tmp."""


def put_whole(path: Path, text: str) -> None:
    """Write UTF-8 beside the file and put that in its place; links are followed; raises OSError.

    Pipes, and files that cannot be replaced, are written to as they are. The executor imports nothing from outside
    planner, so this is not `profiles/documents/whole_file.py`.
    """
    place = Path(os.path.realpath(path))  # of /dev/stdout that is a pipe a name that does not exist
    is_plain = not path.exists() or (place.is_file() and os.access(place, os.W_OK))
    if is_plain and os.access(place.parent, os.W_OK):
        part = place.with_name(f".{place.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            if place.exists():
                part.chmod(place.stat().st_mode)
            part.replace(place)
            return
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno not in _FIXED:
                raise
    path.write_text(text, encoding="utf-8")
