"""How much of what takes long is run: `make test` takes a part of it, `make test-long` (PIPEPLAN_LONG=1) the whole."""

import os
from typing import TypeVar

import pytest

T = TypeVar("T")

IS_LONG = os.environ.get("PIPEPLAN_LONG", "0") != "0"

long_only = pytest.mark.skipif(not IS_LONG, reason="make test-long runs it")
"""Marks what takes long and has a shorter test beside it that sees most of the same faults."""

LEAST_EXAMPLES, SHARE = 8, 0.1
"""Of hypothesis' examples, how many are tried at least, and which share of them, unless all are."""


def shortened(part: T, *, whole: T) -> T:
    """The part that every run tests, or the whole."""
    return whole if IS_LONG else part


def examples(whole: int) -> int:
    """How many of so many examples of hypothesis are tried."""
    return shortened(min(whole, max(LEAST_EXAMPLES, round(SHARE * whole))), whole=whole)
