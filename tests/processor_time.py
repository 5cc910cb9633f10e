"""Processor seconds of every test file, its processes included: `pytest --processor-times FILE`.

Where four processes share two cores, how long a test lasts says little about what it costs. A process is counted by the
test that saw it end; a fork likewise, although another process is its parent (tests/forking.py). In no row is what
processes took whose end nobody waited for, and what those took that others are forks of.
"""

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.forking import FORKS_SECONDS

OUTPUT = "processor_times"
"""What workers call it when they hand theirs over."""
LEAST_S = 0.5
"""Tests that took less are only in the row of their file."""


def processor_seconds() -> float:
    """What this process, the processes it has seen end and the forks it has seen end have taken so far."""
    return sum(os.times()[:4]) + sum(FORKS_SECONDS)


def render(seconds: Counter[str]) -> str:
    """Files first, then tests, both with the dearest first; the sum in the first line."""
    files, tests = Counter[str](), {name: spent for name, spent in seconds.items() if "::" in name and spent >= LEAST_S}
    for name, spent in seconds.items():
        files[name.partition("::")[0]] += spent
    rows = [("all", sum(files.values())), *files.most_common(), *Counter(tests).most_common()]
    return "".join(f"{spent:9.2f}  {name}\n" for name, spent in rows)


class ProcessorTimes:
    """The plugin, in a worker, in the process that adds up what workers hand over, or in the only one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.seconds = Counter[str]({"(start)": processor_seconds()})
        """By the names of tests, and of what comes before them, in brackets."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Imports are most of it."""
        before = processor_seconds()
        result = yield
        self.seconds["(collection)"] += processor_seconds() - before
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """With fixtures: those of a file belong to its first test that wants them."""
        before = processor_seconds()
        result = yield
        self.seconds[item.nodeid] += processor_seconds() - before
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended, and has handed over what it counted unless it was killed."""
        self.seconds.update(getattr(node, "workeroutput", {}).get(OUTPUT, {}))

    def pytest_sessionfinish(self) -> None:
        """Workers hand over, the first process writes."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[OUTPUT] = dict(self.seconds)
        else:
            Path(self._config.getoption("processor_times")).write_text(render(self.seconds), encoding="utf-8")
