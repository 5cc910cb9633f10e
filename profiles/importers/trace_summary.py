"""What traces of a job's ranks say: durations by device, stage and kind, the order as run, transfers, iterations."""

import json
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import MAX_BYTES
from profiles.importers.megatron_timers import read_megatron_timers
from profiles.importers.profiler_events import ACTION_NAME, ProfiledRank, read_profiled_rank
from profiles.importers.rank_clocks import ClockRules, ClockWindow, Entry, set_clocks
from profiles.importers.rank_messages import MessageEnd, pair_messages
from profiles.importers.straggler import RunStep, stream_straggler_trace
from profiles.importers.unmarked_actions import UnmarkedRank, find_stages
from profiles.model_profile import Edge, Layer, LayerCost, Measurement, ModelProfile
from profiles.workload import Workload

MAX_KEPT = 4096
"""Durations kept per cell; of more, a random sample with a fixed seed, for the quartiles only."""

LOGS = (".log", ".txt", ".out")
"""How the names of logs end."""

Cell = tuple[str, int, str]
"""A device, a stage and a kind of action (F, B, I or W)."""


@dataclass(slots=True)
class Spread:
    """Durations of one kind, taken up one by one."""

    count: int = 0
    total_ns: int = 0
    kept: list[int] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, duration_ns: int) -> None:
        """Count a duration."""
        self.count += 1
        self.total_ns += duration_ns
        if len(self.kept) < MAX_KEPT:
            self.kept.append(duration_ns)
        elif (place := self._random.randrange(self.count)) < MAX_KEPT:
            self.kept[place] = duration_ns

    @property
    def mean_ns(self) -> int:
        """Of all."""
        return round(self.total_ns / self.count)

    @property
    def quartiles_ns(self) -> tuple[int, int, int]:
        """Lower quartile, median and upper quartile of those kept."""
        if len(self.kept) == 1:
            return self.kept[0], self.kept[0], self.kept[0]
        low, middle, high = statistics.quantiles(self.kept, n=4, method="inclusive")
        return round(low), round(middle), round(high)


@dataclass(slots=True, kw_only=True)
class TraceSummary:
    """All that is kept of traces, however long they are."""

    source: str
    """The file, or the first of them."""
    form: str
    """Whose form the traces have."""
    cells: dict[Cell, Spread] = field(default_factory=lambda: defaultdict(Spread))
    """Durations of actions."""
    transfers: dict[tuple[int, int], Spread] = field(default_factory=lambda: defaultdict(Spread))
    """From stage to stage; empty where the trace has none."""
    transfer_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    """How much one transfer brings on average, where the trace says it."""
    clocks: dict[str, ClockWindow] = field(default_factory=dict)
    """Of devices whose clock was set: by how much."""
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The order as run of every device in the first iteration."""
    num_other_orders: int = 0
    """In how many later iterations a device ran another order."""
    iterations_ns: list[int] = field(default_factory=list)
    """From the first start to the last end of an action."""
    num_microbatches: int = 0
    """Of one pipeline."""

    @property
    def stages(self) -> tuple[int, ...]:
        """Those that ran."""
        return tuple(sorted({stage for _, stage, _ in self.cells}))

    @property
    def num_pipelines(self) -> int:
        """Devices that ran the first stage."""
        return len({device for device, stage, _ in self.cells if stage == self.stages[0]})

    def mean_ns(self, stage: int, kind: str) -> int:
        """Over all devices that ran the stage; 0 if none ran such an action."""
        found = [each for (_, number, letter), each in self.cells.items() if (number, letter) == (stage, kind)]
        return round(sum(each.total_ns for each in found) / sum(each.count for each in found)) if found else 0

    def take(self, orders: Mapping[str, tuple[str, ...]]) -> None:
        """Keep the first iteration's orders, count those that differ later."""
        is_first = not self.orders
        if is_first:
            self.orders = dict(orders)
        self.num_other_orders += self.orders != orders


def summarise_traces(paths: Sequence[Path]) -> TraceSummary:
    """Of one parquet file, or of one document per rank: the profiler's traces, or what our executor's --trace wrote;
    or of Megatron's log with timers.

    Raises ValueError with one message if there is nothing in them, or something broken.
    """
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise ValueError(
            f"{paths[0]}: holds no traces; give a .parquet file, a trace of torch's profiler per rank, or "
            "the folder that the executor's --trace wrote"
        )
    if chakra := [file for file in files if file.suffix == ".et"]:
        raise ValueError(
            f"{chakra[0]}: is an execution trace of Chakra's in protobuf, not read: its converter leaves out when "
            "operators began and what streams wait for, and cuts durations to whole microseconds; give the linked "
            "traces (JSON, what chakra_trace_link writes) from which it was converted, or the profiler's"
        )
    if any(file.suffix == ".parquet" for file in files):
        if len(files) != 1:
            raise ValueError(f"{files[0]}: one parquet file holds all ranks; give one file at a time")
        return _of_steps(files[0])
    if len(files) == 1 and files[0].suffix in LOGS:
        return _of_timers(files[0])
    return _of_ranks(files)


def _of_timers(path: Path) -> TraceSummary:
    """Means over the microbatches of an interval: a log tells neither order nor transfers."""
    try:
        timers = read_megatron_timers(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    summary = TraceSummary(source=str(path), form="Megatron's timers", num_microbatches=timers.num_microbatches)
    for rank, kind, duration_ns in timers.actions:
        summary.cells[f"rank{rank}", timers.stage(rank), kind].add(duration_ns)
    summary.iterations_ns = timers.iterations_ns
    return summary


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    ours = sorted(path.glob("rank*.json"))
    return ours or sorted(each for each in path.iterdir() if each.name.endswith((".json", ".json.gz", ".parquet")))


def _of_steps(path: Path) -> TraceSummary:
    summary = TraceSummary(source=str(path), form="operations of all ranks (parquet of StragglerAnalysis)")
    for step in stream_straggler_trace(path):
        _take_step(summary, step)
    return summary


def _take_step(summary: TraceSummary, step: RunStep) -> None:
    orders = {}
    for (pipeline, stage), row in step.actions.items():
        device = f"pipeline{pipeline}-stage{stage}"
        orders[device] = tuple(f"{stage}{action.kind}{action.microbatch}" for action in row)
        for action in row:
            summary.cells[device, stage, action.kind].add(action.duration_ns)
        summary.num_microbatches = max(summary.num_microbatches, len({action.microbatch for action in row}))
    for (_, sender, direction, _), duration_ns in step.transfers_ns.items():
        summary.transfers[sender, sender + (1 if direction == "F" else -1)].add(duration_ns)
    summary.take(orders)
    summary.iterations_ns.append(step.measured_ns)


@dataclass(slots=True, kw_only=True)
class _Rank:
    """One rank's document."""

    source: str
    form: str
    number: int | None
    """Its rank, if the document says it."""
    rows: list[list[Entry]] = field(default_factory=list)
    """Per iteration; empty as long as its stage is not known."""
    unmarked: UnmarkedRank | None = None
    messages: list[MessageEnd] = field(default_factory=list)


def _of_ranks(files: Sequence[Path]) -> TraceSummary:
    ranks: dict[str, _Rank] = {}
    for file in files:
        device, rank = _read_rank(file)
        if device in ranks:
            raise ValueError(f"{file}: {device!r} was read already; give every rank's trace once")
        if ranks and rank.form != (form := next(iter(ranks.values())).form):
            raise ValueError(f"{file}: is {rank.form}, {files[0]} is {form}; give the traces of one run in one form")
        ranks[device] = rank
    pairs = _find_rows(ranks)
    counts = {device: len(rank.rows) for device, rank in ranks.items()}
    if len(set(counts.values())) != 1:
        few, many = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        raise ValueError(
            f"{files[0]}: {few!r} has {counts[few]} iterations and {many!r} {counts[many]}; give whole traces"
        )
    form, count = next(iter(ranks.values())).form, next(iter(counts.values()))
    rules = ClockRules(source=str(files[0]), starts_with_input=form == _OWN or form.endswith(_NOT_MARKED), pairs=pairs)
    iterations, clocks = set_clocks(
        [{device: rank.rows[number] for device, rank in ranks.items()} for number in range(count)], rules=rules
    )
    summary = TraceSummary(source=str(files[0]), form=form, clocks=clocks)
    for rows in iterations[min(1, count - 1) :]:
        _take_iteration(summary, rows)
    _take_messages(summary, ranks, iterations=iterations)
    return summary


def _find_rows(ranks: Mapping[str, _Rank]) -> frozenset[tuple[str, str]] | None:
    """Fill in the rows of ranks whose stages only the messages of all tell; devices that follow each other, if told."""
    unmarked = {rank.number: rank.unmarked for rank in ranks.values() if rank.unmarked and rank.number is not None}
    if not unmarked:
        return None
    stages = find_stages(unmarked)
    for rank in ranks.values():
        if rank.unmarked is not None and rank.number is not None:
            rank.rows = [
                [(each.start_ns, each.end_ns, each.kind, stages[rank.number], each.microbatch) for each in row]
                for row in rank.unmarked.iterations
            ]
    names = {rank.number: device for device, rank in ranks.items()}
    behind = {(number, peer) for number, told in unmarked.items() for peer in told.behind}
    if any(stages.get(peer) != stages[number] + 1 for number, peer in behind):
        return None
    return frozenset((names[number], names[peer]) for number, peer in behind)


def _take_messages(
    summary: TraceSummary, ranks: Mapping[str, _Rank], *, iterations: Sequence[Mapping[str, Sequence[Entry]]]
) -> None:
    """Transfers between devices of one stage each: of others, messages do not tell which stage they are for."""
    stages = {device: {entry[3] for entry in iterations[0][device]} for device in ranks}
    sizes: dict[tuple[int, int], list[int]] = defaultdict(list)
    known = {rank.number: (device, rank.messages) for device, rank in ranks.items() if rank.number is not None}
    for one in pair_messages(
        known,
        offsets={device: window.offset_ns for device, window in summary.clocks.items()},
        busy={device: sorted(entry[:2] for rows in iterations for entry in rows[device]) for device in ranks},
        num_iterations=len(iterations),
    ):
        ends = stages[one.source], stages[one.target]
        if all(len(each) == 1 for each in ends) and abs((a := min(ends[0])) - (b := min(ends[1]))) == 1:
            summary.transfers[a, b].add(one.duration_ns)
            sizes[a, b].append(one.num_bytes)
    summary.transfer_bytes = {way: round(statistics.fmean(told)) for way, told in sizes.items() if min(told) >= 0}


def _take_iteration(summary: TraceSummary, rows: Mapping[str, Sequence[Entry]]) -> None:
    for device, row in rows.items():
        for start, end, kind, stage, _ in row:
            summary.cells[device, stage, kind].add(end - start)
    summary.num_microbatches = len({entry[4] for row in rows.values() for entry in row})
    summary.take({device: tuple(f"{s}{kind}{m}" for _, _, kind, s, m in row) for device, row in rows.items()})
    entries = [entry for row in rows.values() for entry in row]
    summary.iterations_ns.append(max(entry[1] for entry in entries) - min(entry[0] for entry in entries))


_NOT_MARKED = ", actions not marked"
_OWN, _MARKED, _UNMARKED = "executor (--trace)", "torch's profiler", "torch's profiler" + _NOT_MARKED


def _form(profiled: ProfiledRank) -> str:
    form = _MARKED if profiled.unmarked is None else _UNMARKED
    return form.replace("torch's profiler", "Chakra's linked traces") if profiled.is_chakra else form


def _read_rank(path: Path) -> tuple[str, _Rank]:
    """Device and document of one rank; its stage is not known where nothing is marked."""
    name = path.name.removesuffix(".gz").removesuffix(".json")
    if (document := _own_document(path)) is not None:
        rows = _own_rows(document, path=path)
        return str(document.get("device") or name), _Rank(source=str(path), form=_OWN, number=None, rows=rows)
    profiled = read_profiled_rank(path)
    device = name if profiled.rank is None else f"rank{profiled.rank}"
    if profiled.unmarked is not None and profiled.rank is None:
        raise ValueError(
            f"{path}: is Chakra's, whose traces state no rank; name the file by it, e.g. linked_0.json"
            if profiled.is_chakra
            else f"{path}: has no distributedInfo.rank; export the trace after init_process_group"
        )
    return device, _Rank(
        source=str(path),
        form=_form(profiled),
        number=profiled.rank,
        rows=_profiled_rows(profiled),
        unmarked=profiled.unmarked,
        messages=profiled.messages,
    )


def _own_document(path: Path) -> dict[str, Any] | None:
    """The document that our executor wrote; None if the file is another's. Only ours are read whole."""
    try:
        with path.open("rb") as file:
            if b'"traceEvents"' in (head := file.read(2**20)) or b'"iterations"' not in head or path.suffix == ".gz":
                return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    except ValueError as error:
        raise ValueError(f"{path}: is cut off or broken ({str(error)[:80]}); run with --trace again") from None
    return document if isinstance(document, dict) and "iterations" in document else None


def _own_rows(document: Mapping[str, Any], *, path: Path) -> list[list[Entry]]:
    rows = []
    try:
        for iteration in document["iterations"]:
            row = []
            for text, start, end in iteration:
                if (match := ACTION_NAME.fullmatch(text)) is not None:
                    if not (isinstance(start, int) and isinstance(end, int) and start <= end):
                        raise ValueError(f"{text} lasts from {start} to {end}")
                    row.append((start, end, match[2], int(match[1]), int(match[3])))
            rows.append(sorted(row))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: is not what the executor's --trace writes: {error}; run it again") from None
    if not any(rows):
        raise ValueError(f"{path}: holds no iteration; run with --trace again")
    return rows


def _profiled_rows(rank: ProfiledRank) -> list[list[Entry]]:
    """An action's n-th event is of iteration n."""
    rows: list[list[Entry]] = []
    seen: dict[tuple[str, int, int], int] = defaultdict(int)
    for entry in rank.actions:
        key = entry[2:]
        if seen[key] == len(rows):
            rows.append([])
        rows[seen[key]].append(entry)
        seen[key] += 1
    return rows


def make_traced_workload(summary: TraceSummary) -> Workload:
    """One pipeline with the stages that ran as its layers: means over devices, their spread as measurements.

    What traces do not say is left out and the provenance says so: bytes, memory, layers within a stage, and for fused
    backwards what is gradient of inputs and what of weights.
    """
    kind = "traced"
    has_halves = any(letter == "W" for _, _, letter in summary.cells)
    layers = tuple(_layer(summary, stage, kind=kind, has_halves=has_halves) for stage in summary.stages)
    holders = {stage: min(d for d, number, _ in summary.cells if number == stage) for stage in summary.stages}
    devices = list(dict.fromkeys(holders[stage] for stage in summary.stages))
    lags = [_lag(summary, pair) for pair in pairwise(summary.stages)]
    return Workload(
        profile=ModelProfile(
            name=Path(summary.source).name,
            layers=layers,
            edges=tuple(
                Edge(producer=a.name, consumer=b.name, bytes=size)
                for (a, b), (_, size) in zip(pairwise(layers), lags, strict=True)
            ),
            provenance=_provenance(summary, has_halves=has_halves),
            measurements=tuple(_measurements(summary)),
        ),
        cluster=Cluster(
            name=f"devices of {Path(summary.source).name}, one pipeline",
            devices=tuple(Device(name=name, type=kind, memory_bytes=MAX_BYTES) for name in devices),
            links=_links(summary, holders),
        ),
        num_microbatches=max(1, summary.num_microbatches),
        options={} if has_halves else {"split_backward": False},
    )


def _lag(summary: TraceSummary, pair: tuple[int, int]) -> tuple[int, int]:
    """Between two stages: mean of both ways' medians in nanoseconds, and bytes on the way forward (0: not told).

    Where these two have no transfers, all others' medians.
    """
    found = [summary.transfers[way] for way in (pair, pair[::-1]) if way in summary.transfers]
    medians = [each.quartiles_ns[1] for each in found or summary.transfers.values()]
    size = summary.transfer_bytes.get(pair, 0)
    return round(statistics.fmean(medians)) if medians else 0, size


def _links(summary: TraceSummary, holders: Mapping[int, str]) -> tuple[Link, ...]:
    """Between devices of neighbouring stages: of one size the time is all bandwidth, of unknown sizes all latency."""
    links = {}
    for pair in pairwise(summary.stages):
        (lag, size), (a, b) = _lag(summary, pair), (holders[stage] for stage in pair)
        is_timed = size > 0 and lag > 0
        links[frozenset((a, b))] = Link(
            a=a,
            b=b,
            bandwidth_bytes_per_s=max(1, round(size * 10**9 / lag)) if is_timed else 10**12,
            latency_ns=0 if is_timed else lag,
        )
    return tuple(link for ends, link in links.items() if len(ends) == 2)


def _layer(summary: TraceSummary, stage: int, *, kind: str, has_halves: bool) -> Layer:
    fused, inputs, weights = (summary.mean_ns(stage, letter) for letter in "BIW")
    cost = LayerCost(
        device_type=kind,
        forward_ns=summary.mean_ns(stage, "F"),
        input_grad_ns=inputs or (fused if not weights else 0),
        weight_grad_ns=weights,
        backward_ns=min(fused, inputs + weights) if fused and inputs else None,
    )
    return Layer(name=f"stage{stage}", costs=(cost,), parameter_bytes=1 if has_halves and weights else 0)


def _provenance(summary: TraceSummary, *, has_halves: bool) -> str:
    split = "" if has_halves else " Backwards are fused: no weight gradient is told apart."
    if summary.transfer_bytes:
        lag = "Memory is unknown: transfers are bandwidth alone (mean of both ways' medians, for their size)"
    else:
        lag = "Bytes and memory are unknown: transfers are latency alone (mean of the medians)"
    none = "" if summary.transfers else " The trace has no transfers: they take no time here."
    clocks = f" Clocks set: {', '.join(sorted(summary.clocks))}." if summary.clocks else ""
    return (
        f"Imported from {summary.form}, {len(summary.iterations_ns)} iterations. Mean of {summary.num_pipelines} "
        "pipelines; a layer is a whole stage as run, so that it cannot be cut anew. "
        f"{lag}, devices have no limit, gradients are not synchronised.{split}{none}{clocks}"
    )


def _measurements(summary: TraceSummary) -> list[Measurement]:
    found = [
        ("duration", f"{stage}{kind} on {device}", each)
        for (device, stage, kind), each in sorted(summary.cells.items())
    ]
    found += [("transfer", f"stage {a} to {b}", each) for (a, b), each in sorted(summary.transfers.items())]
    rows = []
    for what, subject, each in found:
        low, middle, high = each.quartiles_ns
        rows.append(
            Measurement(
                what=what,
                subject=subject,
                count=each.count,
                median_ns=middle,
                low_ns=low,
                high_ns=high,
                source=Path(summary.source).name,
            )
        )
    return rows
