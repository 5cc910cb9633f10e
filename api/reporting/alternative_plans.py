"""Plans of other kinds beside the best (`plan --top K`): what each costs and what it gives, for people and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.formatting import render_ms, render_percent, render_ratio
from api.reporting.plain_names import render_source
from api.reporting.screen_table import figures, make_table
from planner.option_values import Objective, ranked_by
from planner.plan import Plan
from planner.plan_kind import PlanKind, describe_kind, differences, kind_of
from planner.problem import Problem

_NOTEWORTHY = 0.01
"""Differences of memory below this part of the limit are not mentioned."""

_FEWER = "the search found no other kind in time that passed the verifier"
"""Why there may be fewer plans than were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KindRow:
    """One of the plans, beside the best."""

    rank: int
    """1 is the best."""
    kind: PlanKind
    """Stages, replicas and modes by which plans differ."""
    makespan_ns: int
    """End of the iteration."""
    span_ns: int
    """Longest time from first to last action of a device."""
    gap: float
    """How far from the best possible plan it is at most."""
    peak_fraction: float
    """Peak memory over the limit, on the device where that is largest."""
    num_devices: int
    """Devices that hold a stage."""
    source: str
    """Part of the search that found it."""
    trades: tuple[str, ...] = ()
    """What it gives and takes beside the best, in phrases."""


def make_rows(problem: Problem, plans: Sequence[Plan]) -> list[_KindRow]:
    """A row per plan, the best first; its own row trades nothing."""
    rows: list[_KindRow] = []
    for rank, plan in enumerate(plans, start=1):
        evidence = plan.evidence
        assert evidence is not None, "a finished plan carries its evidence"
        row = _KindRow(
            rank=rank,
            kind=kind_of(plan),
            makespan_ns=evidence.makespan_ns,
            span_ns=evidence.span_ns,
            gap=evidence.gap,
            peak_fraction=_fullest(problem, plan),
            num_devices=len(plan.devices),
            source=evidence.source,
        )
        trades = tuple(_trades(row, rows[0], objective=problem.options.objective)) if rows else ()
        rows.append(replace(row, trades=trades))
    return rows


def _fullest(problem: Problem, plan: Plan) -> float:
    assert plan.evidence is not None
    limits = {name: max(1, problem.cluster.by_name[name].usable_bytes) for name in plan.evidence.peak_bytes}
    return max((peak / limits[name] for name, peak in plan.evidence.peak_bytes.items()), default=0.0)


def _trades(row: _KindRow, best: _KindRow, *, objective: Objective) -> Iterator[str]:
    by_span = ranked_by(objective) == "span"
    times = [each.span_ns if by_span else each.makespan_ns for each in (row, best)]
    slower = times[0] / max(1, times[1]) - 1
    yield "as fast" if slower < 0.0005 else f"{render_percent(slower)} slower"
    saved = best.peak_fraction - row.peak_fraction
    if abs(saved) >= _NOTEWORTHY:
        yield f"{'less' if saved > 0 else 'more'} memory ({100 * row.peak_fraction:.0f} %)"
    if row.num_devices != best.num_devices:
        yield f"{'fewer' if row.num_devices < best.num_devices else 'more'} devices ({row.num_devices})"
    yield from differences(best.kind, row.kind)


def render_kinds(rows: Sequence[_KindRow], *, wanted: int) -> RenderableType:
    """The plans for people, the best first, and why they are fewer than wanted if they are."""
    if len(rows) == wanted:
        return _render_table(rows)
    return Group(_render_table(rows), f"{len(rows)} of {wanted}: {_FEWER}")


def _render_table(rows: Sequence[_KindRow]) -> Table:
    table = make_table("plan", "kind", *figures("makespan ms", "vs best", "gap", "memory"), "beside the best")
    for row in rows:
        table.add_row(
            str(row.rank),
            describe_kind(row.kind),
            render_ms(row.makespan_ns),
            render_ratio(row.makespan_ns, rows[0].makespan_ns),
            render_percent(row.gap),
            f"{100 * row.peak_fraction:.0f} %",
            Text("; ".join(row.trades) or render_source(row.source), style="" if row.trades else "dim"),
        )
    return table


def summarise_kinds(rows: Sequence[_KindRow], files: Sequence[str | None]) -> list[dict[str, Any]]:
    """The plans for programs, each with the file that holds it, if one does."""
    return [
        {**asdict(row), "description": describe_kind(row.kind), "trades": list(row.trades), "file": file}
        for row, file in zip(rows, files, strict=True)
    ]


def file_names(output: str | None, *, count: int) -> list[str | None]:
    """Where so many plans go: `plan.json`, `plan.2.json`, ...; only the first goes to standard output."""
    if output in (None, "-"):
        return [None] * count
    path = Path(output)
    others = [str(path.with_name(f"{path.stem}.{number}{path.suffix}")) for number in range(2, count + 1)]
    return [output, *others]
