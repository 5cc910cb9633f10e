"""Megatron's log with timers of all ranks (`--timing-log-level 2 --timing-log-option all`), line by line.

Whatever stands before Megatron's own words is passed over: labels of ranks, names of pods, time stamps, several of
them. `rampup_batch_size` changes the microbatches of an iteration, so that every interval states its own.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_MAX_LINE = 2**20
"""Longest line read."""

_MARK = "times across ranks (ms)"
"""Before the timers of an interval."""

_NEEDED = ("world_size", "pipeline_model_parallel_size", "data_parallel_size", "global_batch_size", "micro_batch_size")
_CHUNKS = "virtual_pipeline_model_parallel_size"
_CHOSEN = ("use_tp_pp_dp_mapping", "rampup_batch_size", _CHUNKS)
_KINDS = {"forward-compute": "F", "backward-compute": "B"}
_WRAPPED = re.compile(r'^\{.*"(?:log|message|msg|line)": *("(?:[^"\\]|\\.)*").*\}\s*$')
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ARGUMENT = re.compile(rf"(?<![\w.-])({'|'.join((*_NEEDED, *_CHOSEN))}) \.{{3,}} (.*\S)\s*$")
_TIMER = re.compile(r"(?:^|[\s:>|\])])([a-z][a-z0-9-]*):\s*$")
_RANK = re.compile(r"(?<![\w-])rank +(\d+): +([0-9.]+)\s*$")
_ITERATION = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
_NUMBER = re.compile(r"iteration +(\d+)/")
_SAMPLES = re.compile(r"consumed samples: +(\d+)")
_BATCH = re.compile(r"global batch size: +(\d+)")


@dataclass(slots=True, kw_only=True)
class MegatronTimers:
    """Arguments and intervals of a log with timers."""

    arguments: Mapping[str, int]
    """Those of Megatron's that are needed."""
    iterations_ns: list[int] = field(default_factory=list)
    """Mean of every interval with so many microbatches."""
    actions: list[tuple[int, str, int]] = field(default_factory=list)
    """Rank, kind (F or B), and the mean of its actions in an interval, in nanoseconds."""
    num_microbatches: int = 0
    """Of one pipeline, at the end of the log."""
    stages_inside: bool = False
    """Whether ranks count stages before pipelines (`--use-tp-pp-dp-mapping`)."""

    def stage(self, rank: int) -> int:
        """Megatron counts stages outermost, or within each pipeline where it was told to."""
        told = self.arguments
        depth = told["pipeline_model_parallel_size"]
        if not self.stages_inside:
            return rank * depth // told["world_size"]
        return rank // (told["world_size"] // (depth * told["data_parallel_size"])) % depth


@dataclass(slots=True, kw_only=True)
class _Interval:
    """One logging interval of several iterations."""

    mean_ns: int
    counts: tuple[int | None, int | None]
    """Iterations and samples since the job's begin."""
    batch: int | None
    totals: list[tuple[int, str, int]]


@dataclass(slots=True)
class _Log:
    path: Path
    arguments: dict[str, str] = field(default_factory=dict)
    intervals: list[_Interval] = field(default_factory=list)
    kind: str | None = None
    totals: list[tuple[int, str, int]] = field(default_factory=list)
    """Those of the last interval, or of the next one where timers come first."""

    def take(self, line: str) -> None:
        """Read one line; ValueError where a second run was told otherwise."""
        if match := _ARGUMENT.search(line):
            before = self.arguments.setdefault(match[1], match[2])
            if before != match[2]:
                raise ValueError(f"{self.path}: {match[1]} is {before}, then {match[2]}: two runs; give the log of one")
        elif match := _ITERATION.search(line):
            self._begin(line, mean_ns=round(float(match[1]) * 1e6))
        elif _MARK in line:
            self.kind = None
        elif match := _RANK.search(line):
            if self.kind is not None:
                self.totals.append((int(match[1]), self.kind, round(float(match[2]) * 1e6)))
        elif match := _TIMER.search(line):
            self.kind = _KINDS.get(match[1])

    def _begin(self, line: str, *, mean_ns: int) -> None:
        timers_first = bool(self.totals) and (not self.intervals or self.totals is not self.intervals[-1].totals)
        totals: list[tuple[int, str, int]] = self.totals if timers_first else []
        counts = _find(_NUMBER, line), _find(_SAMPLES, line)
        self.intervals.append(_Interval(mean_ns=mean_ns, counts=counts, batch=_find(_BATCH, line), totals=totals))
        self.kind, self.totals = None, [] if timers_first else totals


def _find(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return None if match is None else int(match[1])


def read_megatron_timers(path: Path) -> MegatronTimers:
    """Read a log of any length; ValueError with one message if sizes or timers are missing or cut off."""
    log = _Log(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in _lines(file):
            log.take(line)
    arguments = _require_arguments(log)
    _require_timers(log, size=arguments["world_size"])
    samples = _samples_per_iteration(log, batch=arguments["global_batch_size"])
    each = arguments["micro_batch_size"] * arguments["data_parallel_size"]
    if min(samples) < each:
        raise ValueError(f"{path}: global_batch_size is less than one microbatch per pipeline; give another log")
    told = list(zip(log.intervals, samples, strict=True))
    last = next((count for count in reversed(samples) if count % each == 0), samples[-1])
    return MegatronTimers(
        arguments=arguments,
        stages_inside=log.arguments.get("use_tp_pp_dp_mapping") == "True",
        num_microbatches=round(last / each),
        iterations_ns=[one.mean_ns for one, count in told if count == last],
        actions=[(rank, kind, round(total * each / count)) for one, count in told for rank, kind, total in one.totals],
    )


def _require_arguments(log: _Log) -> dict[str, int]:
    found = {name: int(value) for name, value in log.arguments.items() if name in _NEEDED and value.isdecimal()}
    if missing := [name for name in _NEEDED if found.get(name, 0) < 1]:
        raise ValueError(
            f"{log.path}: does not state {missing[0]}; give the whole log, with the arguments at its start"
        )
    if (chunks := log.arguments.get(_CHUNKS, "None")) not in ("None", "1"):
        raise ValueError(
            f"{log.path}: {_CHUNKS} = {chunks}: a rank's timers add up its stages; give torch's profiler's traces"
        )
    pipelines = found["pipeline_model_parallel_size"] * found["data_parallel_size"]
    if found["world_size"] % pipelines:
        raise ValueError(
            f"{log.path}: world_size = {found['world_size']} is not a multiple of pipeline_model_parallel_size times "
            f"data_parallel_size = {pipelines}; give the log of one run"
        )
    return found


def _require_timers(log: _Log, *, size: int) -> None:
    """ValueError unless every interval has both timers of every rank once."""
    timed = [one for one in log.intervals if one.totals]
    for kind, name in ((kind, name) for name, kind in _KINDS.items()):
        ranks = {rank for one in timed for rank, letter, _ in one.totals if letter == kind}
        if ranks != set(range(size)):
            raise ValueError(
                f"{log.path}: {name} of {len(ranks)} ranks, but {size} ran; log with --timing-log-level 2 "
                "--timing-log-option all"
            )
    whole = sorted((rank, kind) for rank in range(size) for kind in _KINDS.values())
    if any(sorted(total[:2] for total in one.totals) != whole for one in timed):
        raise ValueError(f"{log.path}: is cut off: ranks have different numbers of intervals; remove its last lines")


def _samples_per_iteration(log: _Log, *, batch: int) -> list[float]:
    """Of every interval: by its counters, else as it states its batch, else as the arguments do.

    Raises ValueError where the batch grows and an interval says nothing of it.
    """
    found: list[float] = []
    before = _counts_before(log.intervals)
    for one in log.intervals:
        mean = _mean_batch(before, one.counts)
        if mean is None and one.batch is None and log.arguments.get("rampup_batch_size", "None") != "None":
            raise ValueError(
                f"{log.path}: rampup_batch_size is set, and iteration {one.counts[0]} does not state its global batch "
                "size; give whole lines"
            )
        found.append(mean or one.batch or batch)
        before = one.counts
    return found


def _counts_before(intervals: list[_Interval]) -> tuple[int | None, int | None]:
    """Before the first interval: none have been if it is no longer than the second; a job that continues has others."""
    numbers = [one.counts[0] for one in intervals[:2]]
    first, second = numbers if len(numbers) == 2 else (None, None)
    return (0, 0) if first is not None and second is not None and 2 * first <= second else (None, None)


def _mean_batch(before: tuple[int | None, int | None], after: tuple[int | None, int | None]) -> float | None:
    (number, samples), (later, more) = before, after
    if number is None or samples is None or later is None or more is None or later <= number or more <= samples:
        return None
    return (more - samples) / (later - number)


def _lines(file: TextIO) -> Iterator[str]:
    """A longer line, which is none of ours, comes in pieces."""
    while line := file.readline(_MAX_LINE):
        yield _COLOUR.sub("", _unwrapped(line.rstrip("\n")))


def _unwrapped(line: str) -> str:
    """What a program printed, of a line of JSON in which a container's or a collector's log keeps it."""
    match = _WRAPPED.search(line)
    try:
        return str(json.loads(match[1])).rstrip("\n") if match else line
    except ValueError:
        return line
