"""The report of a plan beside its run, as tables."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.formatting import render_bytes, render_ms, render_percent
from api.reporting.run_comparison import PlanAndRun
from api.reporting.screen import render_header
from api.reporting.screen_table import figures, make_table
from planner.fidelity.attribution import CAUSES
from planner.fidelity.calibration import CalibratedQuantity
from planner.fidelity.memory_parts import DeviceMemory

_MAX_ROWS = 30
"""Rows per table; of more, those are shown that differ most."""

_MEANINGS = {
    "compute": "actions were slower or faster than profiled",
    "transfer": "transfers were slower or faster than planned",
    "synchronisation": "gradients were reduced slower or faster than planned",
    "optimizer": "the optimizer step was slower or faster than planned",
    "launch overhead": "what a process does between two actions, before it asks for its inputs",
    "waiting": "single tensors that came later or earlier than usual",
}

_HEADINGS = {
    "duration": "Durations by stage and kind, ms",
    "transfer": "Transfers by path, ms",
    "overhead": "Launch overhead by stage and kind, ms",
}


def render_run(run: PlanAndRun) -> RenderableType:
    """What was predicted and measured, the parts of the difference, and where they are."""
    attribution, iterations = run.attribution, run.comparison.iterations
    durations = sorted(iteration.duration_ns for iteration in iterations)
    summary = (
        f"predicted {render_ms(attribution.predicted_ns)} ms   measured {render_ms(attribution.measured_ns)} ms "
        f"(iteration {run.iteration.number}, the median of {len(durations)}; from {render_ms(durations[0])} to "
        f"{render_ms(durations[-1])}; {run.num_left_out} left out as warm-up)"
    )
    tables: list[RenderableType] = []
    for what, heading in _HEADINGS.items():
        if rows := [finding for finding in run.findings if finding.what == what]:
            tables += ["", heading, _render_findings(rows)]
    if run.memory:
        tables += ["", "Peak memory by device", _render_memory(run.memory)]
    header = render_header(run.comparison.problem)
    return Group(header, "", summary, describe_causes(run), "", _render_parts(run), *tables)


def describe_causes(run: PlanAndRun) -> str:
    """One line: how much of measured - predicted is the host's, the card's and the messages', and what of memory."""
    causes = ", ".join(f"{name} {_signed(part) or '0'} ms" for name, part in run.attribution.causes.items())
    differences = [used.measured_peak_bytes - used.predicted_peak_bytes for used in run.memory]
    most = max(differences, key=abs, default=None)
    memory = "not measured" if most is None else f"{_signed_bytes(most)} at most"
    return f"difference by cause: {causes}; memory {memory}"


def _render_parts(run: PlanAndRun) -> Table:
    attribution = run.attribution
    table = make_table("part", "cause", *figures("ms", "of measured", is_whole=False), "what it is")
    for name, part in attribution.parts:
        share, meaning = _share(part, attribution.measured_ns), Text(_MEANINGS[name], style="dim")
        table.add_row(name, CAUSES[name], _signed(part), share, meaning)
        for kind, own in attribution.kinds if name == "compute" else ():
            if own:
                table.add_row(f"  {kind}", "", _signed(own), _share(own, attribution.measured_ns), "")
    total = attribution.measured_ns - attribution.predicted_ns
    share = _share(total, attribution.measured_ns)
    table.add_row("sum", "", _signed(total), share, "measured minus predicted", style="bold")
    return table


def _render_findings(findings: list[CalibratedQuantity]) -> Table:
    headers = ("samples", "predicted", "median", "quartiles", "difference")
    table = make_table("where", *figures(*headers, is_whole=False))
    ranked = sorted(findings, key=lambda finding: -abs(finding.median_ns - finding.predicted_ns))[:_MAX_ROWS]
    for finding in [each for each in findings if each in ranked]:
        entry = finding.as_measurement("run")
        table.add_row(
            finding.subject,
            str(entry.count),
            render_ms(finding.predicted_ns),
            render_ms(entry.median_ns),
            f"{render_ms(entry.low_ns)} to {render_ms(entry.high_ns)}",
            _signed(entry.median_ns - finding.predicted_ns),
        )
    if len(findings) > _MAX_ROWS:
        table.add_row(f"… {len(findings) - _MAX_ROWS} more", *[""] * 5)
    return table


def _render_memory(rows: Sequence[DeviceMemory]) -> Table:
    """At rest and under way are the parts of measured - predicted."""
    headers = ("predicted", "measured", "difference", "at rest", "under way", "allocator")
    table = make_table("device", *figures(*headers, is_whole=False), "counted by")
    for row in rows:
        difference = row.measured_peak_bytes - row.predicted_peak_bytes
        table.add_row(
            row.device,
            render_bytes(row.predicted_peak_bytes),
            render_bytes(row.measured_peak_bytes),
            _share(difference, max(1, row.measured_peak_bytes)),
            _signed_bytes(row.rest_part_bytes),
            _signed_bytes(row.way_part_bytes),
            "" if row.allocator_bytes is None else render_bytes(row.allocator_bytes),
            row.source,
        )
    return table


def _signed_bytes(num_bytes: int) -> str:
    return f"{'+' if num_bytes > 0 else '-' if num_bytes < 0 else ''}{render_bytes(abs(num_bytes))}"


def _signed(nanoseconds: int) -> str:
    return f"{'+' if nanoseconds > 0 else '-' if nanoseconds < 0 else ''}{render_ms(abs(nanoseconds))}"


def _share(part: int, whole: int) -> str:
    return f"{'+' if part > 0 else '-' if part < 0 else ''}{render_percent(abs(part) / whole)}"
