"""How much of what takes long is run: `make test` takes a part of it, `make test-long` (PIPEPLAN_LONG=1) the whole."""

import os
from typing import TypeVar

T = TypeVar("T")

IS_LONG = os.environ.get("PIPEPLAN_LONG", "0") != "0"

LEAST_EXAMPLES, SHARE = 8, 0.2
"""Of hypothesis' examples, how many are tried at least, and which share of them, unless all are."""


def shortened(part: T, *, whole: T) -> T:
    """The part that every run tests, or the whole."""
    return whole if IS_LONG else part


def examples(whole: int) -> int:
    """How many of so many examples of hypothesis are tried."""
    return shortened(min(whole, max(LEAST_EXAMPLES, round(SHARE * whole))), whole=whole)
