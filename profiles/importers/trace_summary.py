"""What traces of a job's ranks say: durations by device, stage and kind, the order as run, transfers, iterations."""

import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from profiles.assumptions import Assumptions
from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import MAX_BYTES
from profiles.importers.megatron_arguments import read_assumptions
from profiles.importers.megatron_timers import read_megatron_timers
from profiles.importers.rank_clocks import ClockWindow, Entry
from profiles.importers.rank_traces import RankTraces, read_ranks
from profiles.importers.straggler import RunStep, stream_straggler_trace
from profiles.importers.trace_files import LOGS, find_traces
from profiles.model_profile import Edge, Layer, LayerCost, Measurement, ModelProfile
from profiles.workload import Workload

MAX_KEPT = 4096
"""Durations kept per cell; of more, a random sample with a fixed seed, for the quartiles only."""

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
        """Average duration of all samples."""
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
    """Tool that wrote the traces."""
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
    num_untimed: int = 0
    """Iterations of which the trace tells durations and order alone."""
    num_microbatches: int = 0
    """Of one pipeline."""
    assumptions: Assumptions | None = None
    """How the job ran, where the trace tells it."""
    num_ranks: int = 0
    """Traces of ranks that were read, where each has its own."""
    world_size: int | None = None
    """Ranks of the job, as these traces state it."""

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages of the trace, ascending."""
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
    files = find_traces(paths)
    if files[0].suffix == ".parquet":
        return _of_steps(files[0])
    return _of_timers(files[0]) if files[0].suffix in LOGS else _of_ranks(read_ranks(files))


def _of_timers(path: Path) -> TraceSummary:
    """Means over the microbatches of an interval: a log tells neither order nor transfers."""
    try:
        timers = read_megatron_timers(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    summary = TraceSummary(source=str(path), form="Megatron's timers", num_microbatches=timers.num_microbatches)
    summary.assumptions = read_assumptions(path)
    for rank, kind, duration_ns in timers.actions:
        summary.cells[f"rank{rank}", timers.stage(rank), kind].add(duration_ns)
    summary.iterations_ns = timers.iterations_ns
    return summary


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


def _of_ranks(job: RankTraces) -> TraceSummary:
    summary = TraceSummary(source=str(job.files[0]), form=job.form, clocks=job.clocks)
    summary.num_ranks, summary.world_size = len(job.ranks), job.world_size
    for number in range(min(1, job.num_iterations - 1), job.num_iterations):
        _take_iteration(summary, job.iteration(number), is_timed=not job.is_rebuilt)
    sizes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in job.transfers():
        ends = job.stages[one.source], job.stages[one.target]
        if all(len(each) == 1 for each in ends) and abs((a := min(ends[0])) - (b := min(ends[1]))) == 1:
            summary.transfers[a, b].add(one.duration_ns)
            sizes[a, b].append(one.num_bytes)
    summary.transfer_bytes = {
        pair_of_stages: round(statistics.fmean(told)) for pair_of_stages, told in sizes.items() if min(told) >= 0
    }
    return summary


def _require_whole_stages(rows: Mapping[str, Sequence[Entry]], *, source: str) -> None:
    """ValueError where a stage that has backwards ran forwards or backwards of other microbatches than the others."""
    ran: dict[tuple[int, str], set[int]] = defaultdict(set)
    for _, _, kind, stage, microbatch in (entry for row in rows.values() for entry in row if entry[2] != "W"):
        ran[stage, "forward"].update([microbatch] if kind == "F" else [])
        if kind != "F":
            ran[stage, "backward"].add(microbatch)
    whole = set[int]().union(*ran.values())
    for (stage, what), found in sorted(ran.items()):
        if found != whole:
            raise ValueError(
                f"{source}: stage {stage} has no {what} of microbatch {min(whole - found)}, which others ran; give "
                "traces that are not cut off"
            )


def _take_iteration(summary: TraceSummary, rows: Mapping[str, Sequence[Entry]], *, is_timed: bool) -> None:
    _require_whole_stages(rows, source=summary.source)
    for device, row in rows.items():
        for start, end, kind, stage, _ in row:
            summary.cells[device, stage, kind].add(end - start)
    summary.num_microbatches = len({entry[4] for row in rows.values() for entry in row})
    summary.take({device: tuple(f"{s}{kind}{m}" for _, _, kind, s, m in row) for device, row in rows.items()})
    if not is_timed:
        summary.num_untimed += 1
        return
    entries = [entry for row in rows.values() for entry in row]
    summary.iterations_ns.append(max(entry[1] for entry in entries) - min(entry[0] for entry in entries))


def make_traced_workload(summary: TraceSummary) -> Workload:
    """One pipeline with the stages that ran as its layers: means over devices, their spread as measurements.

    What traces do not say is left out and the provenance says so: bytes, memory, layers within a stage, and for fused
    backwards what is gradient of inputs and what of weights.
    """
    kind = "traced"
    backwards = {stage for _, stage, letter in summary.cells if letter in "BI"}
    if alone := [stage for stage in summary.stages if stage not in backwards]:
        raise ValueError(
            f"{summary.source}: stage {alone[0]} has no backward; give a trace of training, with backwards"
        )
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
            assumptions=summary.assumptions,
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
    found = [
        summary.transfers[pair_of_stages]
        for pair_of_stages in (pair, pair[::-1])
        if pair_of_stages in summary.transfers
    ]
    medians = [each.quartiles_ns[1] for each in found or summary.transfers.values()]
    size = summary.transfer_bytes.get(pair, 0)
    return round(statistics.fmean(medians)) if medians else 0, size


def _links(summary: TraceSummary, holders: Mapping[int, str]) -> tuple[Link, ...]:
    """Between devices of neighbouring stages: of one size the time is all bandwidth, of unknown sizes all latency."""
    links = {}
    for pair in pairwise(summary.stages):
        (lag, size), (a, b) = _lag(summary, pair), (holders[stage] for stage in pair)
        is_timed = size > 0 and lag > 0
        if a == b:
            continue
        links[frozenset((a, b))] = Link(
            a=a,
            b=b,
            bandwidth_bytes_per_s=max(1, round(size * 10**9 / lag)) if is_timed else 10**12,
            latency_ns=0 if is_timed else lag,
        )
    return tuple(links.values())


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
    split = "" if has_halves else " Backwards are fused: weight gradients are not separate."
    if summary.transfer_bytes:
        lag = "Memory is unknown: transfers are bandwidth alone (mean of both ways' medians, for their size)"
    else:
        lag = "Bytes and memory are unknown: transfers are latency alone (mean of the medians)"
    none = "" if summary.transfers else " The trace has no transfers: they take no time here."
    count = len(summary.iterations_ns) + summary.num_untimed
    if summary.world_size not in (None, summary.num_ranks):
        none += f" Traces of {summary.num_ranks} of {summary.world_size} ranks were given."
    clocks = f" Clocks set: {', '.join(sorted(summary.clocks))}." if summary.clocks else ""
    return (
        f"Imported from {summary.form}, {count} iterations. Mean of {summary.num_pipelines} pipelines; a layer is a "
        f"whole stage as run, so it cannot be divided again. {lag}, devices have no limit, gradients are not "
        f"synchronised.{split}{none}{clocks}"
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
