"""The words of a schedule: one action is one kind of work on one stage for one microbatch, written `2F0`."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "I", "W", "B"]
"""F forward, I input gradient, W weight gradient, B backward (I and W in one call)."""

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")

KIND_NAMES = {"F": "forward", "I": "input gradient", "W": "weight gradient", "B": "backward"}
"""By letter the name of a kind, as reports and traces print it."""

ACTION_TEXT = re.compile(r"(0|[1-9][0-9]{0,8})([FIWB])(0|[1-9][0-9]{0,8})")
"""Form of an action: stage, kind, microbatch."""


class Action(NamedTuple):
    """`kind` of work on `stage` for `microbatch`; `str(Action("F", 2, 0)) == "2F0"`."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A microbatch whose stash travels to the memory of the host after its F, and back before its I or B."""

    microbatch: int
    """Its number."""
    freed_before: Action
    """The action before which the device has given the bytes back: it waits until the transfer out has ended."""
    fetched_before: Action
    """The action before which the device holds the bytes again, and asks for the transfer back."""


def parse_action(text: str) -> Action:
    """Read `2F0`; raises ValueError for anything else (leading zeros and trailing text included)."""
    match = ACTION_TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an action; write stage, kind (F, I, W or B) and microbatch, e.g. '2F0'")
    stage, kind, microbatch = match.groups()
    return Action(kind, int(stage), int(microbatch))  # type: ignore[arg-type]
