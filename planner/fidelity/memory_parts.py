"""Where a run's peak memory differs from the plan's: at rest, and under way (docs/reference/comparison.md)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device: bytes as planned and as measured."""

    device: str
    """As the plan calls it."""
    source: str
    """Who counted: `resident set` or `cuda allocator`."""
    predicted_peak_bytes: int
    """Of the plan as played; where the host's kernel counts, with the device's reserve."""
    predicted_rest_bytes: int
    """What the plan holds all the time: state, receive and gradient buffers."""
    measured_peak_bytes: int
    """The most at any moment of the run."""
    measured_rest_bytes: int
    """After the last iteration."""
    allocator_bytes: int | None
    """The most that torch's allocator had asked the device for; None on a host."""

    @property
    def rest_part_bytes(self) -> int:
        """Of measured - predicted peak: what is held all the time."""
        return self.measured_rest_bytes - self.predicted_rest_bytes

    @property
    def way_part_bytes(self) -> int:
        """Of measured - predicted peak: what comes and goes within an iteration."""
        return self.measured_peak_bytes - self.predicted_peak_bytes - self.rest_part_bytes


def compare_memory(problem: Problem, plan: Plan, *, folder: Path, timeline: Timeline) -> tuple[DeviceMemory, ...]:
    """Every device whose `rankN.json` in `folder` says what it held, in the plan's order.

    Raises ValueError that names the document if what it says cannot be read.
    """
    static = lay_out(plan, costs=CostModel(problem)).static_bytes
    found = {name: used for path in sorted(folder.glob("rank*.json")) for name, used in _read(path).items()}
    return tuple(
        DeviceMemory(
            device=device,
            source=used["source"],
            predicted_peak_bytes=timeline.peak_bytes[device] + _reserve(problem, device, source=used["source"]),
            predicted_rest_bytes=static[device],
            measured_peak_bytes=used["peak_bytes"],
            measured_rest_bytes=used["rest_bytes"],
            allocator_bytes=used["reserved_bytes"],
        )
        for device in plan.devices
        if (used := found.get(device)) is not None
    )


def _reserve(problem: Problem, device: str, *, source: str) -> int:
    """A resident set has the runtime and the allocator's slack in it; torch's own allocator counts tensors only."""
    return (problem.cluster.by_name[device].reserved_bytes or 0) if source == "resident set" else 0


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    used = document.get("memory") if isinstance(document, dict) else None
    if used is None:
        return {}
    fields = {"source": str, "peak_bytes": int, "rest_bytes": int, "reserved_bytes": int | None}
    if set(used) != set(fields) or not all(isinstance(used[name], kind) for name, kind in fields.items()):
        raise ValueError(f"{path}: memory = {str(used)[:80]!r} cannot be read; run the plan again with this version")
    return {str(document["device"]): used}
