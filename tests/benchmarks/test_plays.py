"""Plays per second beside those of an older checkout: which is run where, and what is divided by what."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plays

ROW = "| {name} | 192 | 50,442 | {rate:,} | 38,629 | 238,055 |"


def test_rates_are_read_from_the_benchmark_of_a_checkout(monkeypatch: pytest.MonkeyPatch):
    """Tests that the benchmark runs in the checkout, with its modules first, and that its rows are read."""
    asked = []

    def run(command: list[str], *, cwd: Path, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append((command[1:], cwd, env["PYTHONPATH"]))
        text = "\n".join(["| workload | actions |", "| --- | --- |", ROW.format(name=plays.WORKLOADS[0], rate=1_000)])
        return subprocess.CompletedProcess(command, 0, stdout=text)

    monkeypatch.setattr(subprocess, "run", run)
    found = plays.rates(Path("/old"), seconds=0.5)
    assert found == {plays.WORKLOADS[0]: [50_442, 1_000, 38_629, 238_055]}
    assert asked == [(["-m", "benchmarks.plays", "0.5"], Path("/old"), "/old")]


def test_every_kernel_is_measured():
    """Tests that a workload's plays, steps and moves are counted as the kernels are today."""
    name, count, *rates = plays.measure(plays.WORKLOADS[0], seconds=0.001)
    assert name == plays.WORKLOADS[0]
    assert int(count) > 0
    assert all(int(rate.replace(",", "")) > 0 for rate in rates)


def test_the_best_turns_are_compared(monkeypatch: pytest.MonkeyPatch):
    """Tests that of several turns the best here is divided by the best there, column by column."""
    turns = {"old": [[10.0, 50.0], [20.0, 40.0]], "new": [[30.0, 10.0], [5.0, 100.0]]}

    def rates(folder: Path, *, seconds: float) -> dict[str, list[float]]:
        return dict.fromkeys(plays.WORKLOADS, turns["old" if folder.name == "old" else "new"].pop(0))

    monkeypatch.setattr(plays, "rates", rates)
    rows = list(plays.compare(Path("/old"), seconds=1.0, turns=2))
    assert rows == [[name, "1.50", "2.00"] for name in plays.WORKLOADS]
