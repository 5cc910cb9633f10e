"""Production traces in the form of ByteDance-Seed/StragglerAnalysis: every operation of every rank, as parquet.

Columns: `dp_rank` (the pipeline), `stage`, `step`, `optype`, `start_ts` and `duration` in seconds since the step's
begin on one clock, `mb_id` (the microbatch of a compute operation) and `seq_id` (the count of a transfer on its way).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_MAX_SECONDS = 10_000.0
"""Longest step that is believed."""

_COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id", "seq_id")

_NAME = "optype"

_STEP = _COLUMNS.index("step")

_MAX_SKEW_NS = 10_000_000
"""So much earlier than its input was made an action may start by the clocks of two hosts."""

_COMPUTE: dict[str, Literal["F", "B"]] = {"forward-compute": "F", "backward-compute": "B"}

_TRANSFER: dict[str, tuple[Literal["F", "B"], bool]] = {
    "forward-send": ("F", True),
    "forward-recv": ("F", False),
    "backward-send": ("B", True),
    "backward-recv": ("B", False),
}


ReplicaKey = tuple[int, int]
"""A pipeline and the place of a device in it: its stage, where every device has one."""

ActionKind = Literal["F", "B", "I", "W"]

Key = tuple[int, int, ActionKind, int]
"""A pipeline, a stage, a kind of action and a microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAction:
    """One forward or backward, or half of one, of one microbatch, as it was run."""

    kind: ActionKind
    """Forward, the whole backward, or its halves: gradients of inputs and of weights."""
    stage: int
    """Of its pipeline."""
    microbatch: int
    """Of its pipeline."""
    start_ns: int
    """Since the step's begin."""
    duration_ns: int
    gap_ns: int = 0
    """Between the action before it and when its device took it up, not waiting: messages, bookkeeping; 0: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One iteration of all pipelines."""

    number: int
    """Of the job."""
    actions: dict[ReplicaKey, tuple[RunAction, ...]]
    """By pipeline and device, in the order as run."""
    transfers_ns: dict[Key, int]
    """By pipeline, sending stage, direction (F or B) and count, as they are used: from when both ends were ready until
    it had arrived."""

    @property
    def measured_ns(self) -> int:
        """From the first start of an action to the last end of one."""
        ends = [row[-1].start_ns + row[-1].duration_ns for row in self.actions.values()]
        return max(ends) - min(row[0].start_ns for row in self.actions.values())

    def of_stages(self) -> dict[tuple[int, int], ReplicaKey]:
        """By pipeline and stage: the device that has it."""
        return {(replica[0], action.stage): replica for replica, row in self.actions.items() for action in row}

    @property
    def is_plain(self) -> bool:
        """Whether every device has one stage and every backward is whole."""
        return all(
            action.stage == replica[1] and action.kind in "FB"
            for replica, row in self.actions.items()
            for action in row
        )

    def keyed(self) -> Iterator[tuple[Key, RunAction]]:
        """Actions by device, in order of time."""
        for (pipeline, _), row in self.actions.items():
            for action in row:
                yield (pipeline, action.stage, action.kind, action.microbatch), action

    def ends_as_run_ns(self) -> dict[Key, int]:
        """When every action ended, the first one starting at 0."""
        begin = min(row[0].start_ns for row in self.actions.values())
        return {key: action.start_ns + action.duration_ns - begin for key, action in self.keyed()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCeiling:
    """What a trace may hold; its footer is asked before anything is unpacked."""

    rows: int
    """Operations."""
    num_bytes: int
    """Bytes of the columns that are read, unpacked."""


def read_straggler_trace(path: Path, *, ceiling: TraceCeiling | None = None) -> tuple[RunStep, ...]:
    """All steps of a trace, in order.

    Raises ValueError with one message if the file is no such trace, is cut off, empty or above the ceiling, if times
    are impossible, or if pyarrow is missing.
    """
    return tuple(sorted(stream_straggler_trace(path, ceiling=ceiling), key=lambda step: step.number))


def stream_straggler_trace(path: Path, *, ceiling: TraceCeiling | None = None) -> Iterator[RunStep]:
    """Step by step as the file has them, one step in memory at a time; ValueError as above."""
    number: int | None = None
    rows, done, is_empty = _StepRows(), set[int](), True
    for row in _rows(path, ceiling=ceiling):
        if row[_STEP] != number:
            if rows.actions and number is not None:
                is_empty = False
                yield rows.finish(number, source=str(path))
            if number is not None:
                done.add(number)
            rows, number = _StepRows(), row[_STEP]
            if number in done:
                raise ValueError(f"{path}: the operations of step {number} are scattered; sort the file by step")
        rows.add(row, source=str(path))
    if rows.actions and number is not None:
        yield rows.finish(number, source=str(path))
    elif is_empty:
        raise ValueError(f"{path}: contains no operations; export the trace again")


def _rows(path: Path, *, ceiling: TraceCeiling | None) -> Iterator[tuple[Any, ...]]:
    """Row by row in the order of `_COLUMNS`, a batch in memory at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("reading parquet requires pyarrow; install pipeline-planner[traces]") from None
    try:
        with parquet.ParquetFile(path) as file:
            _require_columns(file.schema_arrow, source=str(path))
            if ceiling is not None:
                _require_below(ceiling, file.metadata, source=str(path))
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20, read_dictionary=[_NAME]) as file:
            for batch in file.iter_batches(batch_size=16_384, columns=list(_COLUMNS)):
                yield from zip(*(_values(batch.column(name)) for name in _COLUMNS), strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: cannot be read as parquet ({str(error)[:80]}); export the trace again") from None


def _require_columns(schema: Any, *, source: str) -> None:
    """Raise ValueError for a column that is missing, or has other values: nested ones would unpack to any size."""
    from pyarrow import types

    for name in _COLUMNS:
        if name not in schema.names:
            raise ValueError(f"{source}: has no column {name!r}; give a trace of every operation of every rank")
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        is_text, is_number = types.is_string(kind) or types.is_large_string(kind), types.is_integer(kind)
        if not (types.is_null(kind) or (is_text if name == _NAME else is_number or types.is_floating(kind))):
            wanted = "texts" if name == _NAME else "numbers"
            raise ValueError(f"{source}: column {name!r} has values of type {str(kind)[:40]}; give {wanted}")


def _values(column: Any) -> list[Any]:
    """What stands in a column; of a text that many rows refer to there is one, however long it is."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        return list(column.to_pylist())
    known = column.dictionary.to_pylist()
    return [None if place is None else known[place] for place in column.indices.to_pylist()]


def _require_below(ceiling: TraceCeiling, metadata: Any, *, source: str) -> None:
    """Raise ValueError for a footer that promises more."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    num_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema in _COLUMNS)
    for size, most, what in ((rows, ceiling.rows, "operations"), (num_bytes, ceiling.num_bytes, "bytes unpacked")):
        if size > most:
            raise ValueError(
                f"{source}: holds {size:,} {what}, more than {most:,}; export fewer steps, or use the command line"
            )


class _StepRows:
    """The operations of one step."""

    def __init__(self) -> None:
        self.actions: dict[tuple[int, int], list[RunAction]] = defaultdict(list)
        self.ends: dict[Key, dict[bool, tuple[float, float]]] = defaultdict(dict)

    def add(self, row: tuple[Any, ...], *, source: str) -> None:
        """Take up an operation; those that are neither computation nor a transfer between stages are left out."""
        pipeline, stage, number, name, start, length, microbatch, count = row
        kind, transfer = _COMPUTE.get(name), _TRANSFER.get(name)
        if kind is None and transfer is None:
            return
        if None in row:
            raise ValueError(
                f"{source}: step {number} has an operation without {_COLUMNS[row.index(None)]!r}; "
                "export the trace again"
            )
        if not (0 <= start <= _MAX_SECONDS and 0 <= length <= _MAX_SECONDS):
            raise ValueError(
                f"{source}: step {number}: {name} starts at {start} s and takes {length} s; "
                "give seconds since the step's begin, on one clock"
            )
        place = count if kind is None else microbatch
        numbers = (pipeline, stage, number, place)
        if not (min(numbers) >= 0 and pipeline % 1 == stage % 1 == number % 1 == place % 1 == 0):
            raise ValueError(
                f"{source}: {name} has dp_rank {pipeline}, stage {stage}, step {number}, number {place}; "
                "give whole numbers from 0"
            )
        pipeline, stage, place = int(pipeline), int(stage), int(place)
        if kind is not None:
            self.actions[pipeline, stage].append(
                RunAction(
                    kind=kind,
                    stage=stage,
                    microbatch=place,
                    start_ns=round(start * 1e9),
                    duration_ns=round(length * 1e9),
                )
            )
        if transfer is not None:
            direction, is_send = transfer
            sender = stage if is_send else stage + (-1 if direction == "F" else 1)
            self.ends[pipeline, sender, direction, place][is_send] = start, start + length

    def finish(self, number: int, *, source: str) -> RunStep:
        """The step; ValueError where a stage ran other microbatches than the rest of its pipeline."""
        actions = {key: tuple(sorted(row, key=lambda each: each.start_ns)) for key, row in sorted(self.actions.items())}
        wanted: dict[int, list[tuple[str, int]]] = {}
        for (pipeline, stage), row in actions.items():
            ran = sorted((str(action.kind), action.microbatch) for action in row)
            if wanted.setdefault(pipeline, ran) != ran or len(set(ran)) != len(ran):
                raise ValueError(
                    f"{source}: step {number}, pipeline {pipeline}: stage {stage} ran other microbatches than the "
                    "stage before it; give a trace that is not cut off"
                )
        for pipeline, sender, direction, _ in self.ends:
            for stage in (sender, sender + (1 if direction == "F" else -1)):
                if (pipeline, stage) not in actions:
                    raise ValueError(
                        f"{source}: step {number}, pipeline {pipeline}: others exchange with stage {stage}, which ran "
                        "nothing; give the operations of all ranks"
                    )
        whence = f"{source}: step {number}"
        _require_one_clock(actions, source=whence)
        transfers = {
            key: _transfer_ns(ends, key=key, source=whence) for key, ends in self.ends.items() if len(ends) == 2
        }
        return RunStep(number=int(number), actions=actions, transfers_ns=transfers)


def _transfer_ns(ends: Mapping[bool, tuple[float, float]], *, key: Key, source: str) -> int:
    """From when both ends were ready until it had arrived; ValueError where that is long before it was sent."""
    (sent, _), (ready, arrived) = ends[True], ends[False]
    if (sent - arrived) * 1e9 > _MAX_SKEW_NS:
        raise ValueError(
            f"{source}, pipeline {key[0]}: what stage {key[1]} sends arrives {(sent - arrived) * 1e3:.1f} ms before it "
            "is sent; synchronise the ranks' clocks and export the trace again"
        )
    return max(0, round((arrived - max(sent, ready)) * 1e9))


def product_of(key: Key) -> Key:
    """What others wait for: either kind of backward makes a stage's gradient (B), W nothing that anybody waits for."""
    pipeline, stage, kind, microbatch = key
    return (pipeline, stage, "B" if kind == "I" else kind, microbatch)


def needed_by(key: Key, *, last: int) -> Key | None:
    """The product that an action needs; `last`: the last stage of its pipeline."""
    pipeline, stage, kind, microbatch = key
    if kind == "W":
        return pipeline, stage, "B", microbatch
    if kind == "F":
        return None if stage == 0 else (pipeline, stage - 1, "F", microbatch)
    return (pipeline, stage, "F", microbatch) if stage == last else (pipeline, stage + 1, "B", microbatch)


def last_stages(actions: Mapping[ReplicaKey, Sequence[RunAction]]) -> dict[int, int]:
    """By pipeline."""
    return dict(sorted((replica[0], action.stage) for replica, row in actions.items() for action in row))


def _require_one_clock(actions: Mapping[ReplicaKey, Sequence[RunAction]], *, source: str) -> None:
    """ValueError where an action starts long before the one that makes its input has ended.

    A stage whose clock is behind has forwards too early; where it is ahead, the stage before has backwards too early.
    """
    last = dict(sorted(actions))
    ends = {
        (*replica, action.kind, action.microbatch): action.start_ns + action.duration_ns
        for replica, row in actions.items()
        for action in row
    }
    for (pipeline, stage), row in actions.items():
        for action in row:
            maker = needed_by((pipeline, stage, action.kind, action.microbatch), last=last[pipeline])
            early = 0 if maker is None else ends.get(maker, 0) - action.start_ns
            if maker is not None and early > _MAX_SKEW_NS:
                raise ValueError(
                    f"{source}, pipeline {pipeline}: a {'forward' if action.kind == 'F' else 'backward'} of stage "
                    f"{stage} starts {early / 1e6:.1f} ms before stage {maker[1]} has made its input; synchronise the "
                    "ranks' clocks and export the trace again"
                )
