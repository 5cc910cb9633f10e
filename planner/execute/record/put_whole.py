"""Puts text into a file, whole at any time: a kill leaves what stood there before."""

import os
from pathlib import Path


def put_whole(path: Path, text: str) -> None:
    """Write UTF-8 beside the file and put that in its place; links are followed, pipes are written to; raises OSError.

    The executor imports nothing from outside planner, so this is not `profiles/documents/whole_file.py`.
    """
    place = Path(os.path.realpath(path))
    is_plain = place.is_file() or not place.exists()
    part = place.with_name(f".{place.name}.part") if is_plain else place
    part.write_text(text, encoding="utf-8")
    if is_plain:
        part.replace(place)
