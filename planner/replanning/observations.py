"""What the ranks of a running job wrote down, by device: durations of actions, whole iterations, time between them."""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.actions import Kind, parse_action
from planner.fidelity.executed_run import ExecutedIteration, find_other_run, make_iteration, of_run
from planner.plan import Plan
from profiles.importers.profiler_events import MarkedActions

ACTION_NAME = re.compile(r"(?:PP:)?([0-9]+[FIWB][0-9]+)")
"""`0F3`, or as torch's pipelining runtime marks it for its profiler, `PP:0F3`."""

Cell = tuple[str, int, Kind]
"""A device, a stage and a kind of action."""

_Entry = tuple[str, int, int]
"""Name, start and end of an action, in nanoseconds of one clock."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """One rank's document."""

    source: str
    device: str
    rows: tuple[tuple[_Entry, ...], ...]
    """Per iteration its actions."""
    times: tuple[Mapping[str, Any], ...]
    """Per iteration when actions were taken up, and when it began and ended; empty in a profiler's trace."""
    of_run: tuple[Any, ...] = ()
    """What the documents of all ranks state alike."""


def spread_of(samples: Sequence[float]) -> float:
    """Standard error of the median of samples over it, from their median deviation; 0 for a single one."""
    middle = statistics.median(samples)
    if len(samples) < 2 or middle <= 0:
        return 0.0
    deviation = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return float(1.25 * deviation / middle / len(samples) ** 0.5)


def read_observations(documents: Iterable[tuple[str, str | bytes]], plan: Plan) -> Observations:
    """Put the documents of all ranks together, each given as (its name, its text).

    Raises ValueError that names a document that is neither the executor's timings nor a trace of torch's profiler, or
    that is of another plan, and if no action is in any of them.
    """
    parsed = [_parse(text, source=source) for source, text in documents]
    if other := find_other_run((document.source, document.of_run) for document in parsed):
        raise ValueError(other)
    taken: set[str] = set()
    ranks = [_rank_of(document, plan, taken=taken) for document in parsed if any(document.rows)]
    if not ranks:
        raise ValueError("the documents contain no measured action; run with --trace, or profile the actions (PP:0F0)")
    counts = {len(document.rows) for document in ranks}
    if len(counts) != 1:
        raise ValueError(f"the ranks' numbers of iterations are {sorted(counts)}; give the traces of one run")
    count = counts.pop()
    kept = range(min(1, count - 1), count)
    durations: dict[Cell, list[tuple[int, ...]]] = defaultdict(list)
    for document in ranks:
        for number in kept:
            for cell, spans in _by_cell(document, number, plan=plan).items():
                durations[cell].append(spans)
    spans_ns, gaps = _extents(ranks, kept)
    missing = tuple(device for device in plan.devices if device not in taken)
    return Observations(
        durations_ns={cell: tuple(rows) for cell, rows in sorted(durations.items())},
        iterations=() if missing else _whole(ranks, kept, plan=plan),
        iteration_ns=spans_ns,
        between_ns=gaps,
        missing_devices=missing,
    )


def _parse(text: str | bytes, *, source: str) -> _Document:
    try:
        plain: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: not JSON ({str(error)[:80]}); give timings of the executor, or a trace") from None
    try:
        if isinstance(plain, dict) and "iterations" in plain:
            return _of_rank(plain, source=source)
        events = plain["traceEvents"] if isinstance(plain, dict) else plain
        return _Document(source=source, device="", rows=_of_trace(events, source=source), times=())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if str(error).startswith(f"{source}: has"):
            raise
        raise ValueError(
            f"{source}: neither the executor's timings nor a trace of torch's profiler; give rankN.json or a trace"
        ) from None


def _of_rank(plain: dict[str, Any], *, source: str) -> _Document:
    rows = []
    for row in plain["iterations"]:
        entries = [(str(name), start, end) for name, start, end in row if ACTION_NAME.fullmatch(name)]
        if not all(isinstance(start, int) and isinstance(end, int) and end >= start for _, start, end in entries):
            raise ValueError("a time is not an integer, or an action ends before it starts")
        rows.append(tuple(entries))
    times = plain.get("times", ())
    return _Document(
        source=source,
        device=str(plain.get("device", "")),
        rows=tuple(rows),
        times=tuple(times) if len(times) == len(rows) else (),
        of_run=of_run(plain),
    )


def _of_trace(events: list[dict[str, Any]], *, source: str) -> tuple[tuple[_Entry, ...], ...]:
    """As the importer reads them: without waits for messages, on the GPU if there; the n-th event is of iteration n."""
    marked = MarkedActions(source)
    for event in events:
        marked.take(event)
    rows: list[list[_Entry]] = []
    seen: dict[str, int] = {}
    for start, end, kind, stage, microbatch in marked.finish()[0]:
        name = f"{stage}{kind}{microbatch}"
        number = seen[name] = seen.get(name, -1) + 1
        while len(rows) <= number:
            rows.append([])
        rows[number].append((name, start, end))
    return tuple(tuple(row) for row in rows)


def _rank_of(document: _Document, plan: Plan, *, taken: set[str]) -> _Document:
    """The document with its device: as it says, else the first that holds its stages and is not taken yet."""
    stages = {parse_action(name).stage for row in document.rows for name, _, _ in row}
    if beyond := sorted(stage for stage in stages if stage >= len(plan.stages)):
        raise ValueError(
            f"{document.source}: stage {beyond[0]} was measured, but the plan has {len(plan.stages)} stages; give the "
            "traces of this plan"
        )
    held = {
        device: {n for n, stage in enumerate(plan.stages) if any(device in group for group in stage.groups)}
        for device in plan.devices
    }
    if document.device:
        if document.device not in held or not stages <= held[document.device]:
            raise ValueError(
                f"{document.source}: device {document.device!r} ran stages {sorted(stages)}, which the plan does not "
                "have there; give the traces of the plan that ran"
            )
        chosen = document.device
    else:
        fitting = [device for device, those in held.items() if device not in taken and stages <= those]
        if not fitting:
            raise ValueError(
                f"{document.source}: stages {sorted(stages)} are on no remaining device of the plan; give one trace "
                "per rank of the plan that ran"
            )
        chosen = fitting[0]
    if chosen in taken:
        raise ValueError(f"{document.source}: device {chosen!r} was given before; give every rank's trace once")
    taken.add(chosen)
    return _Document(source=document.source, device=chosen, rows=document.rows, times=document.times)


def _by_cell(document: _Document, number: int, *, plan: Plan) -> dict[Cell, tuple[int, ...]]:
    """A stage without W runs torch's B where the plan says I."""
    planned = set(plan.schedule.get(document.device, ()))
    found: dict[Cell, list[int]] = defaultdict(list)
    for name, start, end in document.rows[number]:
        action = parse_action(name)
        kind: Kind = action.kind
        if kind == "B" and action not in planned and action._replace(kind="I") in planned:
            kind = "I"
        found[document.device, action.stage, kind].append(end - start)
    return {cell: tuple(spans) for cell, spans in found.items()}


def _extents(ranks: Sequence[_Document], kept: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Durations of iterations, and times between them.

    An iteration begins when the first process that waits for nobody begins. Traces of a profiler have no common clock:
    of them the longest of any rank counts, and the least time between two iterations of a rank.
    """
    numbers = tuple(kept)
    if all(document.times for document in ranks):
        first = [each for each in ranks if all(each.rows[n] and each.rows[n][0][0].startswith("0F") for n in numbers)]
        begins = [min(int(each.times[n]["begin_ns"]) for each in first or ranks) for n in numbers]
        ends = [max(int(each.times[n]["end_ns"]) for each in ranks) for n in numbers]
        spans = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return spans, tuple(max(0, begin - end) for begin, end in zip(begins[1:], ends, strict=False))
    rows = [[each.rows[n] for n in numbers if each.rows[n]] for each in ranks]
    extents = [[(min(e[1] for e in row), max(e[2] for e in row)) for row in of_rank] for of_rank in rows]
    spans = tuple(max(end - start for start, end in column) for column in zip(*extents, strict=False))
    gaps = [[max(0, b[0] - a[1]) for a, b in pairwise(of_rank)] for of_rank in extents]
    return spans, tuple(min(column) for column in zip(*gaps, strict=False))


def _whole(ranks: Sequence[_Document], kept: Iterable[int], *, plan: Plan) -> tuple[ExecutedIteration, ...]:
    """Iterations as `pipeplan compare` reads them; none where the documents do not say all that this needs."""
    if not all(document.times for document in ranks):
        return ()
    try:
        return tuple(
            make_iteration(
                number,
                plan=plan,
                rows={document.device: (document.rows[number], document.times[number]) for document in ranks},
            )
            for number in kept
        )
    except KeyError as error:
        raise ValueError(f"{ranks[0].source}: times lack {error}; run the plan again with this version") from None
