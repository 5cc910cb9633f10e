"""Files that are whole at any time: a kill or a full disk leaves what stood there before."""

import errno
import os
import threading
from pathlib import Path

_FIXED = (errno.EBUSY, errno.EPERM, errno.EACCES)
"""What is said of a file that may be written but not replaced: it is a mount, or another user's in /tmp."""


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 to a file beside it and put that in its place once it is on the disk; raises OSError.

    Links are followed. Pipes and devices, and files that cannot be replaced, are written to as they are.
    """
    place = Path(os.path.realpath(path))  # of /dev/stdout that is a pipe a name that does not exist
    is_plain = not path.exists() or (place.is_file() and os.access(place, os.W_OK))
    if not is_plain or not os.access(place.parent, os.W_OK):
        path.write_text(text, encoding="utf-8")
        return
    part = place.with_name(f".{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            part.chmod(place.stat().st_mode)
        part.replace(place)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno not in _FIXED:
            raise
        path.write_text(text, encoding="utf-8")
