"""What the commands say with `--json`: plain dictionaries of nanoseconds, bytes and names."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from api.progress import RunSummary
from planner.evidence.check_evidence import HISTORY, Rederivation
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.explain import Explanation
from planner.simulation.simulate import Timeline
from planner.what_if.sensitivity import ShadowPrice

_LEFT_OUT = {"certificate", "verdict", "baselines", "peak_bytes"}


def summarise_plan(plan: Plan, run: RunSummary) -> dict[str, Any]:
    """The evidence of a plan without its longest parts, and how the run went."""
    evidence = {} if plan.evidence is None else asdict(plan.evidence)
    return {
        "event": "done",
        "elapsed_s": round(run.elapsed_s, 3),
        "first_plan_s": None if run.first_plan_s is None else round(run.first_plan_s, 3),
        "num_stages": len(plan.stages),
        "devices": list(plan.devices),
        **{key: value for key, value in evidence.items() if key not in _LEFT_OUT},
        "baselines": [
            {key: row[key] for key in ("name", "makespan_ns", "span_ns", "fits_memory")}
            for row in evidence.get("baselines", ())
        ],
        "baselines_without_time": [
            row.name for row in (() if plan.evidence is None else plan.evidence.baselines) if row.had_no_time
        ],
        "verdict_passed": bool(evidence.get("verdict", {}).get("passed")),
        "files": dict(run.files or {}),
    }


def summarise_timeline(problem: Problem, timeline: Timeline) -> dict[str, Any]:
    """The figures of a timeline, per device and together."""
    return {
        "makespan_ns": timeline.makespan_ns,
        "span_ns": timeline.span_ns,
        "bubble": timeline.bubble,
        "num_transfers": len(timeline.transfers),
        "transfer_ns": sum(transfer.end_ns - transfer.start_ns for transfer in timeline.transfers),
        "devices": {
            device: {
                "num_actions": len(order),
                "first_start_ns": order[0].start_ns if order else None,
                "last_end_ns": order[-1].end_ns if order else None,
                "work_ns": sum(timed.end_ns - timed.start_ns for timed in order),
                "peak_bytes": timeline.peak_bytes[device],
                "memory_bytes": problem.cluster.by_name[device].usable_bytes,
            }
            for device, order in timeline.actions.items()
        },
    }


def summarise_explanation(explanation: Explanation) -> dict[str, Any]:
    """Where the time goes: parts per device, and shares of the critical chain."""
    return {
        "makespan_ns": explanation.makespan_ns,
        "devices": [asdict(row) for row in explanation.devices],
        "path": [
            {"kind": kind, "stage": stage, "nanoseconds": nanoseconds}
            for (kind, stage), nanoseconds in explanation.path_shares().items()
        ],
        "binds": [asdict(binding) for binding in explanation.binds],
    }


def summarise_rederivation(outcome: Rederivation) -> dict[str, Any]:
    """What a certificate proves, and everything that the evidence states otherwise."""
    return {
        "passed": outcome.passed,
        "bound": outcome.bound,
        "bound_kind": outcome.bound_kind,
        "lower_bound_ns": outcome.lower_bound_ns,
        "gap": outcome.gap,
        "least_cost": outcome.least_cost,
        "baselines_played": outcome.has_baselines,
        "baselines_computed": outcome.num_computed,
        "baselines_not_computed": list(outcome.unchecked),
        "not_derivable": list(HISTORY),
        "differences": [asdict(difference) for difference in outcome.differences],
        "notes": [asdict(note) for note in outcome.notes],
        "verdict": outcome.verdict.summary(),
    }


def summarise_prices(prices: Sequence[ShadowPrice]) -> dict[str, Any]:
    """What more of each resource is worth, as parts of the present objective."""
    return {"shadow_prices": [asdict(price) for price in prices]}
