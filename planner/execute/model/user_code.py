"""Calls into the user's own code: what fails there is called what it is, and where."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.errors import ExecutionError


class OwnCodeError(RuntimeError):
    """Something that the user gave raised; `__cause__` has its traceback."""


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Raises OwnCodeError that says what raised what, and in which line."""
    try:
        yield
    except (OwnCodeError, ExecutionError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        said = f": {lines[0]}" if lines else ""
        raise OwnCodeError(f"{what} raised {type(error).__name__}{said}{_place(error)}") from error


def _place(error: Exception) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "torch" not in Path(frame.filename).parts
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
