"""Traces of a job as people and programs read them: what was imported."""

import statistics
from typing import Any

from planner.actions import KIND_NAMES
from profiles.importers.trace_summary import Spread, TraceSummary


def summarise_trace(summary: TraceSummary) -> dict[str, Any]:
    """As JSON: every cell with its spread."""
    return {
        "source": summary.source,
        "form": summary.form,
        "ranks": summary.num_ranks,
        "world_size": summary.world_size,
        "pipelines": summary.num_pipelines,
        "stages": list(summary.stages),
        "num_microbatches": summary.num_microbatches,
        "iterations_ns": summary.iterations_ns,
        "untimed_iterations": summary.num_untimed,
        "durations": [
            {"device": device, "stage": stage, "kind": kind, **_spread(each)}
            for (device, stage, kind), each in sorted(summary.cells.items())
        ],
        "transfers": [
            {"from": a, "to": b, **_spread(each), "mean_bytes": summary.transfer_bytes.get((a, b))}
            for (a, b), each in sorted(summary.transfers.items())
        ],
        "clocks": {device: window._asdict() for device, window in sorted(summary.clocks.items())},
        "orders": {device: list(order) for device, order in sorted(summary.orders.items())},
        "iterations_in_another_order": summary.num_other_orders,
    }


def _spread(each: Spread) -> dict[str, int]:
    low, middle, high = each.quartiles_ns
    return {"count": each.count, "mean_ns": each.mean_ns, "median_ns": middle, "low_ns": low, "high_ns": high}


def _describe_iterations(summary: TraceSummary) -> str:
    if not summary.iterations_ns:
        return f"{summary.num_untimed} iterations; the trace states durations and order, but no times"
    times = [each / 1e6 for each in summary.iterations_ns]
    spread = f"(median; {min(times):,.2f} to {max(times):,.2f})"
    return f"{len(times)} iterations of {statistics.median(times):,.2f} ms {spread}"


def describe_trace(summary: TraceSummary) -> list[str]:
    """In lines: a stage and kind per line, over all its devices."""
    lines = [
        f"{summary.source}: {summary.form}",
        f"{summary.num_pipelines} pipeline{'s' if summary.num_pipelines > 1 else ''} x {len(summary.stages)} stages x "
        f"{summary.num_microbatches} microbatches, "
        f"{_describe_iterations(summary)}",
    ]
    if summary.world_size not in (None, summary.num_ranks):
        lines.append(f"  {summary.num_ranks} of {summary.world_size} ranks gave a trace; stages of others are not told")
    for stage in summary.stages:
        for kind in "FBIW":
            those = {
                device: each for (device, number, k), each in summary.cells.items() if (number, k) == (stage, kind)
            }
            if those:
                slow = max(those, key=lambda device: those[device].mean_ns)
                fast = min(those, key=lambda device: those[device].mean_ns)
                mean_ms = summary.mean_ns(stage, kind) / 1e6
                lines.append(
                    f"  stage {stage} {KIND_NAMES[kind]:<15} {mean_ms:10,.3f} ms mean, devices "
                    f"{those[fast].mean_ns / 1e6:,.3f} to {those[slow].mean_ns / 1e6:,.3f} ({slow})"
                )
    for (a, b), each in sorted(summary.transfers.items()):
        size = summary.transfer_bytes.get((a, b))
        told = "bytes not in the trace" if size is None else f"{size:,} bytes each"
        lines.append(
            f"  transfer {a} -> {b}         {each.quartiles_ns[1] / 1e6:10,.3f} ms median, {each.count} of them, {told}"
        )
    if not summary.transfers:
        lines.append("  transfers: not in the trace")
    for device, (low, high, offset) in sorted(summary.clocks.items()):
        lines.append(
            f"  clock of {device} set by {offset / 1e6:+,.3f} ms: inputs came before they were made; "
            f"possible are {low / 1e6:+,.3f} to {high / 1e6:+,.3f}"
        )
    if not summary.orders:
        return [*lines, "  order: not in the trace"]
    lines.append(
        "  order: the same in every iteration"
        if summary.num_other_orders == 0
        else f"  order: differs from the first iteration's in {summary.num_other_orders} others"
    )
    return lines
