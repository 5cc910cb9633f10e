"""A profile with the figures of several runs: tests of api/tuning/workbench.py."""

from dataclasses import replace
from pathlib import Path

import pytest

from api.tuning.short_run import ShortRun
from api.tuning.workbench import calibrate_with
from planner.execute.record.executed_timeline import IterationTimes, render_rank
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.workload import Workload
from tests.api.worlds import make_plan, make_workload


def test_calibrating_keeps_what_other_sizes_took(tmp_path: Path):
    """Tests that a run sets the sizes that it ran, and leaves those alone that an earlier run has set."""
    workload = make_workload()
    layers = tuple(
        replace(layer, costs=(layer.costs[0], replace(layer.costs[0], microbatch_size=4)))
        for layer in workload.profile.layers
    )
    workload = replace(workload, profile=replace(workload.profile, layers=layers))
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=3)
    plan = make_plan(problem)
    run = _record_run(problem, tmp_path / "run", factor=2)
    calibrated, settled, causes = calibrate_with(workload, plan, run=run, settled=frozenset({("embed", 4)}))
    assert _forward(calibrated, "embed") == pytest.approx((2_000_000, 1_000_000), rel=0.01)
    assert _forward(calibrated, "head") == pytest.approx((4_000_000, 4_000_000), rel=0.01)
    assert {("embed", 4), ("embed", 8), ("head", 8)} <= settled
    assert causes == "difference by cause: host 0.000 ms, card +30.00 ms, messages +1.000 ms; memory not measured"


def _forward(workload: Workload, name: str) -> tuple[int, ...]:
    return tuple(cost.forward_ns for cost in workload.profile.by_name[name].costs)


def _record_run(problem: Problem, folder: Path, *, factor: int) -> ShortRun:
    """The plan of the small world, run `factor` times slower than planned."""
    folder.mkdir()
    timeline = simulate(problem, make_plan(problem))
    for rank, (device, order) in enumerate(timeline.actions.items()):
        row = [(str(action), factor * start, factor * end) for action, start, end in order]
        asked = (0, *(end for _, _, end in row[:-1]))
        times = IterationTimes(asked, begin_ns=0, reduced_ns=row[-1][2], end_ns=row[-1][2])
        (folder / f"rank{rank}.json").write_text(render_rank(rank, device, iterations=[row] * 3, times=[times] * 3))
    return ShortRun(folder=str(folder), durations_ns=(1, 1), wall_s=1.0)
