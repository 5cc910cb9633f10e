"""Calls into the user's own code: what fails there is called what it is, and where."""

import traceback
from pathlib import Path
from types import TracebackType

from planner.errors import ExecutionError


class OwnCodeError(RuntimeError):
    """Something that the user gave raised; `__cause__` has its traceback."""


class calling:
    """Raises OwnCodeError that says what raised what, and in which line."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, OwnCodeError | ExecutionError):
            return
        lines = str(error).strip().splitlines()
        said = f": {lines[0]}" if lines else ""
        raise OwnCodeError(f"{self.what} raised {type(error).__name__}{said}{_place(error)}") from error


def _place(error: Exception) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "torch" not in Path(frame.filename).parts
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
