"""What a process held beside what the plan says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.fidelity.memory_parts import compare_memory
from planner.simulation.simulate import simulate
from tests.planner.builders import make_layer, make_link, make_plan, make_problem


@pytest.mark.parametrize(("source", "reserved"), [("resident set", 70), ("cuda allocator", 0)])
def test_the_reserve_is_part_of_a_resident_set(tmp_path: Path, source: str, reserved: int):
    """Tests that a device's reserve counts where the kernel counts, and not where torch counts its tensors."""
    layers = [make_layer(f"l{n}", state_bytes=100 * (n + 1)) for n in range(2)]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=1)
    devices = tuple(replace(device, reserved_bytes=70) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(problem, ["l0 @ a", "l1 @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"})
    timeline = simulate(problem, plan)
    for rank, device in enumerate("ab"):
        peak = timeline.peak_bytes[device] + 75
        used: dict[str, Any] = {"source": source, "peak_bytes": peak, "rest_bytes": 1, "reserved_bytes": None}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"device": device, "memory": used}))
    for row in compare_memory(problem, plan, folder=tmp_path, timeline=timeline):
        assert row.predicted_peak_bytes == timeline.peak_bytes[row.device] + reserved
        assert row.rest_part_bytes + row.way_part_bytes == 75 - reserved
