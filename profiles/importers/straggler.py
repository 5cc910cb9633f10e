"""Production traces in the form of ByteDance-Seed/StragglerAnalysis: every operation of every rank, as parquet.

Columns: `dp_rank` (the pipeline), `stage`, `step`, `optype`, `start_ts` and `duration` in seconds since the step's
begin on one clock, `mb_id` (the microbatch of a compute operation) and `seq_id` (the count of a transfer on its way).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MAX_SECONDS = 10_000.0
"""Longest step that is believed."""

_COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id", "seq_id")

_STEP = _COLUMNS.index("step")

MAX_SKEW_NS = 10_000_000
"""So much earlier than its input was made an action may start by the clocks of two hosts."""

_COMPUTE: dict[str, Literal["F", "B"]] = {"forward-compute": "F", "backward-compute": "B"}

_TRANSFER: dict[str, tuple[Literal["F", "B"], bool]] = {
    "forward-send": ("F", True),
    "forward-recv": ("F", False),
    "backward-send": ("B", True),
    "backward-recv": ("B", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAction:
    """One forward or backward of one microbatch, as it was run."""

    kind: Literal["F", "B"]
    """Forward, or the whole backward."""
    microbatch: int
    """Of its pipeline."""
    start_ns: int
    """Since the step's begin."""
    duration_ns: int
    """Its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One iteration of all pipelines."""

    number: int
    """Of the job."""
    actions: dict[tuple[int, int], tuple[RunAction, ...]]
    """By pipeline and stage, in the order as run."""
    transfers_ns: dict[tuple[int, int, Literal["F", "B"], int], int]
    """By pipeline, sending stage, direction and count: from when both ends were ready until it had arrived."""

    @property
    def measured_ns(self) -> int:
        """From the first start of an action to the last end of one."""
        ends = [row[-1].start_ns + row[-1].duration_ns for row in self.actions.values()]
        return max(ends) - min(row[0].start_ns for row in self.actions.values())


def read_straggler_trace(path: Path) -> tuple[RunStep, ...]:
    """All steps of a trace, in order.

    Raises ValueError with one message if the file is no such trace, is cut off or empty, if times are impossible, or
    if pyarrow is missing.
    """
    return tuple(sorted(stream_straggler_trace(path), key=lambda step: step.number))


def stream_straggler_trace(path: Path) -> Iterator[RunStep]:
    """Step by step as the file has them, one step in memory at a time; ValueError as above."""
    number: int | None = None
    rows, done, is_empty = _StepRows(), set[int](), True
    for row in _rows(path):
        if row[_STEP] != number:
            if rows.actions and number is not None:
                is_empty = False
                yield rows.finish(number, source=str(path))
            if number is not None:
                done.add(number)
            rows, number = _StepRows(), row[_STEP]
            if number in done:
                raise ValueError(f"{path}: the operations of step {number} are not together; sort the file by step")
        rows.add(row, source=str(path))
    if rows.actions and number is not None:
        yield rows.finish(number, source=str(path))
    elif is_empty:
        raise ValueError(f"{path}: holds no operations; export the trace again")


def _rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Row by row in the order of `_COLUMNS`, a batch in memory at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("reading parquet requires pyarrow; install pipeline-planner[traces]") from None
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise ValueError(f"{path}: has no column {missing[0]!r}; give a trace of every operation of every rank")
            for batch in file.iter_batches(batch_size=16_384, columns=list(_COLUMNS)):
                yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: cannot be read as parquet ({str(error)[:80]}); export the trace again") from None


class _StepRows:
    """What was read of one step."""

    def __init__(self) -> None:
        self.actions: dict[tuple[int, int], list[RunAction]] = defaultdict(list)
        self.ends: dict[tuple[int, int, Literal["F", "B"], int], dict[bool, tuple[float, float]]] = defaultdict(dict)

    def add(self, row: tuple[Any, ...], *, source: str) -> None:
        """Take up an operation; those that are neither computation nor a transfer between stages are left out."""
        pipeline, stage, number, name, start, length, microbatch, count = row
        kind, way = _COMPUTE.get(name), _TRANSFER.get(name)
        if kind is None and way is None:
            return
        if None in row:
            raise ValueError(f"{source}: step {number} has an operation without {_COLUMNS[row.index(None)]!r}")
        if not (0 <= start <= MAX_SECONDS and 0 <= length <= MAX_SECONDS):
            raise ValueError(
                f"{source}: step {number}: {name} starts at {start} s and takes {length} s; "
                "times must be seconds since the step's begin, on one clock"
            )
        if kind is not None:
            self.actions[pipeline, stage].append(
                RunAction(
                    kind=kind, microbatch=microbatch, start_ns=round(start * 1e9), duration_ns=round(length * 1e9)
                )
            )
        if way is not None:
            direction, is_send = way
            sender = stage if is_send else stage + (-1 if direction == "F" else 1)
            self.ends[pipeline, sender, direction, count][is_send] = start, start + length

    def finish(self, number: int, *, source: str) -> RunStep:
        """The step; ValueError where a stage ran other microbatches than the rest of its pipeline."""
        actions = {key: tuple(sorted(row, key=lambda each: each.start_ns)) for key, row in sorted(self.actions.items())}
        wanted: dict[int, list[tuple[str, int]]] = {}
        for (pipeline, stage), row in actions.items():
            ran = sorted((str(action.kind), action.microbatch) for action in row)
            if wanted.setdefault(pipeline, ran) != ran or len(set(ran)) != len(ran):
                raise ValueError(
                    f"{source}: step {number}, pipeline {pipeline}: stage {stage} ran other microbatches than the "
                    "stage before it; the trace is cut off"
                )
        _require_one_clock(actions, source=f"{source}: step {number}")
        both = {key: ends for key, ends in self.ends.items() if len(ends) == 2}
        transfers = {
            key: max(0, round((ends[False][1] - max(start for start, _ in ends.values())) * 1e9))
            for key, ends in both.items()
        }
        return RunStep(number=number, actions=actions, transfers_ns=transfers)


def _require_one_clock(actions: Mapping[tuple[int, int], tuple[RunAction, ...]], *, source: str) -> None:
    """ValueError where a forward starts long before the one that makes its input has ended."""
    for (pipeline, stage), row in actions.items():
        made = {
            a.microbatch: a.start_ns + a.duration_ns for a in actions.get((pipeline, stage - 1), ()) if a.kind == "F"
        }
        early = max((made[a.microbatch] - a.start_ns for a in row if a.kind == "F" and a.microbatch in made), default=0)
        if early > MAX_SKEW_NS:
            raise ValueError(
                f"{source}, pipeline {pipeline}: a forward of stage {stage} starts {early / 1e6:.1f} ms before stage "
                f"{stage - 1} has made its input; set the ranks' clocks right and export the trace again"
            )
