"""The front of time and money (`plan --pareto`) for people and programs: a table, a summary, a picture."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from rich.console import Group, RenderableType

from api.formatting import render_ms, render_percent
from api.reporting.screen import ITERATIONS
from api.reporting.screen_table import make_table
from planner.decisions.price.front import ParetoFront, ParetoPoint
from planner.plan import Plan
from planner.problem import Problem

WIDTH, HEIGHT, MARGIN = 640, 400, 60
"""Of the picture, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PointRow:
    """A point of the front."""

    makespan_ns: int
    """End of the iteration."""
    lower_bound_ns: int
    """No plan on these devices is faster."""
    least_ns: int
    """No plan on any devices that costs as little is faster."""
    cost: float
    """Money per iteration."""
    least_cost: float
    """No plan on any devices that is as fast costs less."""
    price_per_hour: float
    """Of the devices used."""
    devices: tuple[str, ...]
    """Names of the devices that hold a stage."""
    types: str
    """How many of every type: `2 x A100, 1 x T4`."""
    microbatch_size: int | None
    """Samples of a microbatch, where that was decided."""


def make_rows(front: ParetoFront) -> list[_PointRow]:
    """A row per point, the fastest first."""
    return [_row(point) for point in front.points]


def _row(point: ParetoPoint) -> _PointRow:
    evidence = point.plan.evidence
    assert evidence is not None
    assert evidence.rental is not None
    return _PointRow(
        makespan_ns=point.makespan_ns,
        lower_bound_ns=evidence.lower_bound_ns,
        least_ns=point.least_ns,
        cost=point.cost,
        least_cost=point.least_cost,
        price_per_hour=evidence.rental.price_per_hour,
        devices=point.plan.devices,
        types=_describe_devices(point.problem, point.plan),
        microbatch_size=point.plan.problem.microbatch_size,
    )


def _describe_devices(problem: Problem, plan: Plan) -> str:
    """How many devices of every type a plan uses."""
    types = [problem.cluster.by_name[name].type for name in plan.devices]
    return ", ".join(f"{types.count(kind)} x {kind}" for kind in problem.cluster.device_types if kind in types)


def _render_money(cost: float) -> str:
    """Money for `ITERATIONS` iterations, with about four digits."""
    return f"{ITERATIONS * cost:,.4g}"


def render_front(front: ParetoFront) -> RenderableType:
    """The points for people, and what the columns mean."""
    table = make_table()
    table.add_column("plan")
    for header in ("makespan ms", "at least", "cost", "at least", "gap", "per hour"):
        table.add_column(header, justify="right", no_wrap=True)
    rows = make_rows(front)
    has_sizes = rows[0].microbatch_size is not None
    if has_sizes:
        table.add_column("size", justify="right", no_wrap=True)
    table.add_column("devices")
    for number, row in enumerate(rows, start=1):
        table.add_row(
            str(number),
            render_ms(row.makespan_ns),
            render_ms(row.least_ns),
            _render_money(row.cost),
            _render_money(row.least_cost),
            render_percent((row.cost - row.least_cost) / row.cost if row.cost else 0.0),
            f"{row.price_per_hour:g}",
            *([str(row.microbatch_size)] if has_sizes else []),
            row.types,
        )
    columns = [
        f"cost: of {ITERATIONS:,} iterations, in the currency of the prices; at least: no plan on any devices that "
        "costs as little is faster, none that is as fast costs less",
        f"{front.num_planned} of {front.num_subsets:,} subsets of the devices were planned for; bounds hold for all",
    ]
    if has_sizes:
        columns.append("size: samples of a microbatch, decided for each plan; bounds hold for every size")
    return Group(table, *columns)


def summarise_front(front: ParetoFront, files: Sequence[str | None]) -> dict[str, Any]:
    """The points for programs, each with the file that holds its plan, if one does."""
    rows = [asdict(row) | {"file": file} for row, file in zip(make_rows(front), files, strict=True)]
    return {"event": "done", "num_subsets": front.num_subsets, "num_planned": front.num_planned, "points": rows}


def render_picture(front: ParetoFront, *, title: str) -> str:
    """A page with a curve: found plans above, what is proved below; makespan to the right, money upwards."""
    rows = make_rows(front)
    most_ns, most_cost = max(row.makespan_ns for row in rows), max(max(row.cost for row in rows), 1e-30)

    def place(time_ns: int, cost: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * time_ns / (1.05 * most_ns)
        return round(x, 1), round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * cost / (1.05 * most_cost), 1)

    found = " ".join("{},{}".format(*place(row.makespan_ns, row.cost)) for row in rows)
    proved = " ".join("{},{}".format(*place(row.makespan_ns, row.least_cost)) for row in rows)
    dots = "".join(_dot(place(row.makespan_ns, row.cost), row) for row in rows)
    money = f"cost of {ITERATIONS:,} iterations, up to {_render_money(most_cost)}"
    left, bottom, right = MARGIN, HEIGHT - MARGIN, WIDTH - MARGIN
    heading = escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{heading}</title>\n'
        f"<h1>{heading}</h1>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif" font-size="12">\n'
        f'<path d="M{left} {MARGIN}V{bottom}H{right}" fill="none" stroke="#888"/>\n'
        f'<text x="{right}" y="{bottom + 35}" text-anchor="end">makespan, up to {render_ms(most_ns)} ms</text>\n'
        f'<text x="{left}" y="{MARGIN - 15}">{money}</text>\n'
        f'<polyline points="{proved}" fill="none" stroke="#888" stroke-dasharray="4 3"/>\n'
        f'<polyline points="{found}" fill="none" stroke="#06c"/>\n{dots}\n'
        f'<text x="{left + 8}" y="{bottom - 8}">line: plans found; dashed: none as fast costs less</text>\n'
        "</svg></html>\n"
    )


def _dot(place: tuple[float, float], row: _PointRow) -> str:
    """A plan, with its figures beside it and in full when pointed at."""
    x, y = place
    figures = f"{render_ms(row.makespan_ns)} ms, {_render_money(row.cost)}, at least {_render_money(row.least_cost)}"
    return (
        f'<circle cx="{x}" cy="{y}" r="4" fill="#06c"><title>{escape(f"{row.types}: {figures}")}</title></circle>'
        f'<text x="{x + 6}" y="{y - 6}">{escape(row.types)}</text>'
    )
