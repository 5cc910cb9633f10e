"""A module that is told the time by its test, where services and servers of other tests go on in this process."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def tell_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Give one module other functions of `time`, `monotonic=...`, say.

    Set in `time` itself, they hold for every thread: an event loop that sees a clock at 0 sleeps for hours.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**(vars(time) | functions)))
