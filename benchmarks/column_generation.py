"""What column generation closes of the gap: `python -m benchmarks.column_generation` (about 15 minutes).

The same planning runs with and without the packing bound, whose columns are loads of devices.
"""

from dataclasses import dataclass, replace
from itertools import product
from statistics import median

from benchmarks.chains import Condition, make_chains, make_one_by_one, parse_wishes
from benchmarks.generate import Family
from benchmarks.report import Planned, Table, ms, percent, plan_and_check
from planner.planning import Limits
from planner.planning.named_params import params_with
from planner.problem import Options

HEADER = (
    "workload", "bound without ms", "plan without ms", "gap", "bound with ms", "plan with ms", "gap", "kind",
    "of the open gap closed", "by the bound alone", "verified", "certificate", "s",
)  # fmt: skip

SIZES = ((24, 8), (48, 8), (96, 16))
"""Layers and devices; twice as many microbatches as devices."""

CONDITIONS: tuple[Condition, ...] = tuple(
    product(
        ("loose", "scarce", "tight"),
        (("homogeneous", "equal"), ("two-level", "equal"), ("homogeneous", "classes"), ("random", "different")),
    )
)

WITHOUT = params_with({"bound.packing_per_s": 1, "bound_turn.share": 0.0, "bound_turn.after_rounds": 10**6})
"""Neither the bound before the search nor the one beside it makes columns."""

HALF = 0.5
"""Of the gap that is open without columns, they should close as much."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload, planned without and with columns."""

    family: Family
    without: Planned
    columns: Planned

    @property
    def closed(self) -> float | None:
        """Part of the gap without columns that is closed with them; None where none was open."""
        before, after = self.without.gap, self.columns.gap
        return 1 - after / before if before > 0 else None

    @property
    def closed_by_bound(self) -> float | None:
        """The same if the better of the two plans had been known to both: what the bound did."""
        before, after = self.without.evidence, self.columns.evidence
        best = min(before.makespan_ns, after.makespan_ns)
        if best <= before.lower_bound_ns:
            return None
        return (min(after.lower_bound_ns, best) - before.lower_bound_ns) / (best - before.lower_bound_ns)


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes(__doc__, time_limit=12.0, what="each of the two runs")
    families = make_chains(SIZES, CONDITIONS)
    seconds = 2.0 if wishes.quick else wishes.time_limit
    table = Table(preface=_preface(seconds), header=HEADER, output=wishes.output)
    rows = []
    for family in families[:2] if wishes.quick else families:
        rows.append(compare(family, seconds=seconds))
        table.add(_cells(rows[-1]))
    table.close(*_verdict(rows))


def compare(family: Family, *, seconds: float) -> Row:
    """Plan a family's workload without and with columns, all decisions open, with the same seconds."""
    problem = replace(make_one_by_one(family), options=Options())
    limits = Limits(time_limit_s=seconds, patience_s=seconds, threads=1)
    return Row(
        family=family,
        without=plan_and_check(problem, limits, params=WITHOUT),
        columns=plan_and_check(problem, limits),
    )


def _cells(row: Row) -> list[str]:
    before, after = row.without.evidence, row.columns.evidence
    both = (row.without, row.columns)
    return [
        row.family.name,
        ms(before.lower_bound_ns),
        ms(before.makespan_ns),
        percent(row.without.gap),
        ms(after.lower_bound_ns),
        ms(after.makespan_ns),
        percent(row.columns.gap),
        after.bound_kind,
        *("none open" if part is None else percent(part) for part in (row.closed, row.closed_by_bound)),
        "yes" if all(each.is_verified for each in both) else "NO",
        "re-derived" if all(each.is_certified for each in both) else "REJECTED",
        f"{sum(each.total_s for each in both):.0f}",
    ]


def _preface(seconds: float) -> list[str]:
    return [
        "# What column generation closes",
        "",
        f"Two runs of {seconds:g} seconds on one thread for every workload, all decisions open. *Without*: no column",
        "is made, neither before the search (`--search-param bound.packing_per_s=1`) nor beside it. *With*: the",
        "defaults: loads of devices are columns of a linear programme (docs/bounds.md, `packing`), and plans that the",
        "bound lets pass are tried. *Of the open gap closed*: by the whole run, better plans included; *by the bound",
        "alone*: from the bound without to that with columns, as a part of the way to the better of the two plans.",
        "",
    ]


def _verdict(rows: list[Row]) -> list[str]:
    remarks = []
    for layers, devices in SIZES:
        own = [row for row in rows if (row.family.num_layers, row.family.num_devices) == (layers, devices)]
        parts = [part for row in own if (part := row.closed) is not None]
        alone = [part for row in own if (part := row.closed_by_bound) is not None]
        if parts:
            remarks.append(
                f"* {layers} layers, {devices} devices: of the open gap {percent(median(parts))} on the median, by the "
                f"bound alone {percent(median(alone))}; at least half in {sum(part >= HALF for part in parts)} of "
                f"{len(parts)}, by the bound alone in {sum(part >= HALF for part in alone)}: "
                f"{'target met' if median(parts) >= HALF else 'TARGET MISSED'}."
            )
    return remarks


if __name__ == "__main__":
    main()
