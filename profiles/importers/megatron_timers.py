"""Megatron's log with timers of all ranks (`--timing-log-level 2 --timing-log-option all`), line by line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

MAX_LINE = 2**20
"""Longest line read."""

MARK = "times across ranks (ms)"
"""Before the timers of an interval."""

_ARGUMENT = re.compile(r"^ *(?:\S+: *)?(\w+) \.{3,} (\d+) *$")
_NEEDED = ("world_size", "pipeline_model_parallel_size", "data_parallel_size", "global_batch_size", "micro_batch_size")
_KINDS = {"forward-compute": "F", "backward-compute": "B"}
_TIMER = re.compile(r"^ *(?:\S+: *)?([a-z][a-z0-9-]*):\s*$")
_RANK = re.compile(r"^ *(?:\S+: *)?rank +(\d+): +([0-9.]+)\s*$")
_ITERATION = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")


@dataclass(slots=True, kw_only=True)
class MegatronTimers:
    """What the log says."""

    arguments: Mapping[str, int]
    """Those of Megatron's that are needed."""
    iterations_ns: list[int] = field(default_factory=list)
    """Mean of every interval that was logged."""
    actions: list[tuple[int, str, int]] = field(default_factory=list)
    """Rank, kind (F or B), and the mean of its actions in an interval, in nanoseconds."""

    @property
    def num_microbatches(self) -> int:
        """Of one pipeline."""
        told = self.arguments
        return told["global_batch_size"] // (told["micro_batch_size"] * told["data_parallel_size"])

    def stage(self, rank: int) -> int:
        """Megatron counts stages outermost."""
        return rank * self.arguments["pipeline_model_parallel_size"] // self.arguments["world_size"]


def read_megatron_timers(path: Path) -> MegatronTimers:
    """Read a log of any length; ValueError with one message if sizes or timers are missing or cut off."""
    arguments: dict[str, int] = {}
    result = MegatronTimers(arguments=arguments)
    kind, is_timed = None, False
    totals: list[tuple[int, str, int]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in _lines(file):
            if not is_timed and (match := _ARGUMENT.match(line)) and match[1] in _NEEDED:
                arguments.setdefault(match[1], int(match[2]))
            elif match := _ITERATION.search(line):
                result.iterations_ns.append(round(float(match[1]) * 1e6))
            elif MARK in line:
                is_timed, kind = True, None
            elif match := _TIMER.match(line):
                kind = _KINDS.get(match[1])
            elif kind is not None and (match := _RANK.match(line)):
                totals.append((int(match[1]), kind, round(float(match[2]) * 1e6)))
    _require(result, totals, path=path)
    count = result.num_microbatches
    result.actions = [(rank, letter, round(total / count)) for rank, letter, total in totals]
    return result


def _require(found: MegatronTimers, totals: list[tuple[int, str, int]], *, path: Path) -> None:
    if missing := [name for name in _NEEDED if found.arguments.get(name, 0) < 1]:
        raise ValueError(f"{path}: does not say {missing[0]}; give the whole log, with the arguments at its beginning")
    ranks = {letter: {rank for rank, kind, _ in totals if kind == letter} for letter in "FB"}
    size = found.arguments["world_size"]
    for letter, name in zip("FB", _KINDS, strict=True):
        if ranks[letter] != set(range(size)):
            raise ValueError(
                f"{path}: {name} of {len(ranks[letter])} ranks, but {size} ran; log with --timing-log-level 2 "
                "--timing-log-option all"
            )
    counts = {(rank, kind): 0 for rank, kind, _ in totals}
    for rank, kind, _ in totals:
        counts[rank, kind] += 1
    if len(set(counts.values())) != 1 or not found.iterations_ns:
        raise ValueError(f"{path}: is cut off: ranks have other numbers of intervals; take its last lines away")
    if not found.num_microbatches:
        raise ValueError(f"{path}: global_batch_size is less than one microbatch per pipeline; give another log")


def _lines(file: TextIO) -> Iterator[str]:
    """A longer line, which is none of ours, comes in pieces."""
    while line := file.readline(MAX_LINE):
        yield line.rstrip("\n")
