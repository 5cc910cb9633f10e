"""Calls into the user's own code: what fails there is called what it is, and where."""

import traceback
from pathlib import Path
from types import TracebackType

from planner.errors import ExecutionError


class OwnCodeError(RuntimeError):
    """Something that the user gave raised; `__cause__` has its traceback."""


class RefusedModelError(ValueError):
    """A model that cannot be cut; the message says why and what to write instead, so that no line has to be told."""


class calling:
    """Raises OwnCodeError that says what raised what, and in which line, and what to do if that is known."""

    __slots__ = "remedy", "what"

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what, self.remedy = what, f"; {remedy}" if remedy else ""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, OwnCodeError | ExecutionError):
            return
        if isinstance(error, RefusedModelError):
            raise RefusedModelError(f"{self.what}: {error}") from error
        lines = str(error).strip().splitlines()
        said = f": {lines[0]}" if lines else ""
        raise OwnCodeError(f"{self.what} raised {type(error).__name__}{said}{_place(error)}{self.remedy}") from error


def _place(error: Exception) -> str:
    frames = [
        each for each in traceback.extract_tb(error.__traceback__)[1:] if "torch" not in Path(each.filename).parts
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
