"""What the ranks of a running job wrote down, by device: durations of actions, whole iterations, time between them."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from planner.actions import Kind, parse_action
from planner.fidelity.executed_run import ExecutedIteration, entries_of, find_other_run, make_iteration
from planner.plan import Plan
from profiles.importers.own_trace import OwnTrace, read_own_trace
from profiles.importers.profiler_events import read_profiled_rank

Cell = tuple[str, int, Kind]
"""A device, a stage and a kind of action."""

_Ranks = Mapping[str, tuple[Path, OwnTrace]]
"""By device its document, and what that says; times are of our executor's documents alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What was executed, iteration by iteration; of a run's first iteration nothing is kept where there are others."""

    durations_ns: Mapping[Cell, tuple[tuple[int, ...], ...]]
    """Per cell and iteration the duration of every action."""
    iterations: tuple[ExecutedIteration, ...] = ()
    """Whole iterations on all devices; empty where a device is missing, or where documents have no common clock."""
    iteration_ns: tuple[int, ...] = ()
    """How long each iteration took, from its begin to its end on all devices that were read."""
    between_ns: tuple[int, ...] = ()
    """From the end of each iteration to the begin of the next one."""
    missing_devices: tuple[str, ...] = ()
    """Devices of the plan of which nothing was read."""

    def typical_ns(self, cell: Cell) -> float:
        """Mean within an iteration, so that a device that stalls now and then shows; median over the iterations."""
        return statistics.median(statistics.fmean(spans) for spans in self.durations_ns[cell] if spans)

    def spread(self, cell: Cell) -> float:
        """Standard error of `typical_ns` over its value, from the spread over all actions; 0 for a single one."""
        return spread_of([span for row in self.durations_ns[cell] for span in row])


def spread_of(samples: Sequence[float]) -> float:
    """Standard error of the median of samples over it, from their median deviation; 0 for a single one."""
    middle = statistics.median(samples)
    if len(samples) < 2 or middle <= 0:
        return 0.0
    deviation = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return float(1.25 * deviation / middle / len(samples) ** 0.5)


def read_observations(files: Iterable[Path], plan: Plan) -> Observations:
    """Put the documents of all ranks together: the executor's timings, or traces of torch's profiler.

    Raises ValueError that names a document that is neither, or that is of another plan.
    """
    ranks: dict[str, tuple[Path, OwnTrace]] = {}
    for path in files:
        trace = _read(path)
        device = _device_of(trace, plan, path=path, taken=ranks)
        if device in ranks:
            raise ValueError(f"{path}: device {device!r} was given before; give every rank's trace once")
        ranks[device] = path, trace
    if other := find_other_run((str(path), trace) for path, trace in ranks.values()):
        raise ValueError(other)
    counts = {len(trace.rows) for _, trace in ranks.values()}
    if len(counts) != 1:
        raise ValueError(f"the ranks' numbers of iterations are {sorted(counts)}; give the traces of one run")
    count = counts.pop()
    kept = range(min(1, count - 1), count)
    durations: dict[Cell, list[tuple[int, ...]]] = defaultdict(list)
    for device, (_, trace) in ranks.items():
        for number in kept:
            for cell, spans in _by_cell(trace, number, plan=plan, device=device).items():
                durations[cell].append(spans)
    missing = tuple(device for device in plan.devices if device not in ranks)
    has_times = all(len(trace.times) == count for _, trace in ranks.values())
    spans_ns, gaps = _extents([trace for _, trace in ranks.values()], kept, has_times=has_times)
    return Observations(
        durations_ns={cell: tuple(rows) for cell, rows in sorted(durations.items())},
        iterations=_whole(ranks, kept, plan=plan) if has_times and not missing else (),
        iteration_ns=spans_ns,
        between_ns=gaps,
        missing_devices=missing,
    )


def _read(path: Path) -> OwnTrace:
    """Of a profiler's trace its actions alone, without waits for messages, on the GPU if there."""
    if (own := read_own_trace(path)) is not None:
        return own
    trace = OwnTrace()
    for row in read_profiled_rank(path).rows:
        trace.rows.append(row)
    if not len(trace.rows):
        raise ValueError(f"{path}: contains no marked action; run with --trace, or profile the actions (PP:0F0)")
    return trace


def _device_of(trace: OwnTrace, plan: Plan, *, path: Path, taken: Iterable[str]) -> str:
    """As the document says, else the first that holds its stages and is not taken yet."""
    stages = {stage for row in trace.rows for _, _, _, stage, _ in row}
    if beyond := sorted(stage for stage in stages if stage >= len(plan.stages)):
        raise ValueError(
            f"{path}: stage {beyond[0]} was measured, but the plan has {len(plan.stages)} stages; give the traces of "
            "this plan"
        )
    held = {
        device: {n for n, stage in enumerate(plan.stages) if any(device in group for group in stage.groups)}
        for device in plan.devices
    }
    if trace.device:
        if trace.device not in held or not stages <= held[trace.device]:
            raise ValueError(
                f"{path}: device {trace.device!r} ran stages {sorted(stages)}, which the plan does not have there; "
                "give the traces of the plan that ran"
            )
        return trace.device
    fitting = [device for device, those in held.items() if device not in taken and stages <= those]
    if not fitting:
        raise ValueError(
            f"{path}: stages {sorted(stages)} are on no remaining device of the plan; give one trace per rank of the "
            "plan that ran"
        )
    return fitting[0]


def _by_cell(trace: OwnTrace, number: int, *, plan: Plan, device: str) -> dict[Cell, tuple[int, ...]]:
    """A stage without W runs torch's B where the plan says I."""
    planned = set(plan.schedule.get(device, ()))
    found: dict[Cell, list[int]] = defaultdict(list)
    for start, end, kind, stage, microbatch in trace.rows.as_written(number):
        action = parse_action(f"{stage}{kind}{microbatch}")
        if kind == "B" and action not in planned and action._replace(kind="I") in planned:
            action = action._replace(kind="I")
        found[device, stage, action.kind].append(end - start)
    return {cell: tuple(spans) for cell, spans in found.items()}


def _extents(
    ranks: Sequence[OwnTrace], kept: Sequence[int], *, has_times: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Durations of iterations, and times between them.

    An iteration begins when the first process that waits for nobody begins. Traces of a profiler have no common clock:
    of them the longest of any rank counts, and the least time between two iterations of a rank.
    """
    if has_times:
        first = [
            each for each in ranks if all(row and row[0][2:4] == ("F", 0) for row in map(each.rows.as_written, kept))
        ]
        begins = [min(each.times[n].begin_ns for each in first or ranks) for n in kept]
        ends = [max(each.times[n].end_ns for each in ranks) for n in kept]
        spans = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return spans, tuple(max(0, begin - end) for begin, end in zip(begins[1:], ends, strict=False))
    rows = [[row for row in map(each.rows.as_written, kept) if row] for each in ranks]
    extents = [[(min(e[0] for e in row), max(e[1] for e in row)) for row in of_rank] for of_rank in rows]
    spans = tuple(max(end - start for start, end in column) for column in zip(*extents, strict=False))
    gaps = [[max(0, b[0] - a[1]) for a, b in pairwise(of_rank)] for of_rank in extents]
    return spans, tuple(min(column) for column in zip(*gaps, strict=False))


def _whole(ranks: _Ranks, kept: Iterable[int], *, plan: Plan) -> tuple[ExecutedIteration, ...]:
    """Iterations as `pipeplan compare` reads them."""
    return tuple(
        make_iteration(
            number,
            plan=plan,
            rows={device: entries_of(trace, number, path=path) for device, (path, trace) in ranks.items()},
        )
        for number in kept
    )
