"""A plan beside its run: what `pipeplan compare PLAN FOLDER` shows and learns."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from api.failures import InputError
from api.inputs import play, reading
from planner.fidelity.attribution import Attribution, Comparison
from planner.fidelity.calibration import CalibratedQuantity, calibrate_cluster, calibrate_profile, find_all
from planner.fidelity.executed_run import ExecutedIteration, read_run, typical
from planner.fidelity.memory_parts import DeviceMemory, compare_memory
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.timeline import Timeline
from profiles.workload import Workload

WARM_UP = 1
"""Iterations at the begin of a run that are left out unless there are no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndRun:
    """A plan and an iteration of its run that stands for all of them."""

    comparison: Comparison
    """Problem, plan, prediction and all iterations that count."""
    iteration: ExecutedIteration
    """The one of median duration."""
    attribution: Attribution
    """Difference between prediction and run, in parts."""
    findings: tuple[CalibratedQuantity, ...]
    """Every quantity of the run beside its prediction."""
    num_left_out: int
    """Iterations of the warm-up."""
    memory: tuple[DeviceMemory, ...]
    """Planned and measured bytes, of the devices whose processes recorded any."""

    def timeline(self) -> Timeline:
        """The iteration as a timeline."""
        return self.comparison.measured_timeline(self.iteration)


def split_files(files: Sequence[str]) -> tuple[str, str, str | None] | None:
    """Plan, folder of a run and workload (if it is there), or None if no folder is among the files."""
    folders = [name for name in files if name != "-" and Path(name).is_dir()]
    if not folders:
        return None
    if len(folders) > 1 or files[0] in folders or len(files) > 3 or files[1] not in folders:
        raise InputError("a comparison with a run needs a plan and a folder; give PLAN FOLDER [WORKLOAD]")
    return files[0], files[1], files[2] if len(files) == 3 else None


def compare_run(problem: Problem, plan: Plan, *, folder: Path, source: str, warm_up: int | None) -> PlanAndRun:
    """Play the plan of `source`, read its run, and find where they differ."""
    timeline = play(problem, plan, source=source)
    with reading():
        iterations = read_run(folder, plan)
        skipped = min(WARM_UP, len(iterations) - 1) if warm_up is None else warm_up
        if skipped >= len(iterations):
            raise InputError(f"--warm-up {skipped}: the run has only {len(iterations)} iterations; give less")
        comparison = Comparison(problem, plan, timeline=timeline, iterations=iterations[skipped:])
        chosen = typical(comparison.iterations)
        return PlanAndRun(
            comparison=comparison,
            iteration=chosen,
            attribution=comparison.attribute(chosen),
            findings=find_all(comparison),
            num_left_out=skipped,
            memory=compare_memory(problem, plan, folder=folder, timeline=timeline),
        )


def render_run_picture(run: PlanAndRun) -> str:
    """Prediction above, run below, on one scale."""
    from api.viewer import render_picture

    comparison = run.comparison
    measured = replace(comparison.plan, evidence=None), run.timeline()
    return render_picture(comparison.problem, comparison.plan, timeline=comparison.timeline, other=measured)


def summarise_run(run: PlanAndRun) -> dict[str, Any]:
    """Everything as JSON-ready data."""
    durations = [iteration.duration_ns for iteration in run.comparison.iterations]
    return {
        "predicted_ns": run.attribution.predicted_ns,
        "measured_ns": run.attribution.measured_ns,
        "difference_ns": run.attribution.measured_ns - run.attribution.predicted_ns,
        "parts_ns": dict(run.attribution.parts),
        "causes_ns": run.attribution.causes,
        "compute_ns_by_kind": dict(run.attribution.kinds),
        "iteration": run.iteration.number,
        "iterations_ns": durations,
        "warm_up": run.num_left_out,
        "memory": [
            asdict(used) | {"rest_part_bytes": used.rest_part_bytes, "way_part_bytes": used.way_part_bytes}
            for used in run.memory
        ],
        "findings": [
            {key: value for key, value in asdict(finding.as_measurement("run")).items() if key != "source"}
            | {"predicted_ns": finding.predicted_ns}
            for finding in run.findings
        ],
    }


def calibrate(run: PlanAndRun, given: Workload, *, folder: Path) -> Workload:
    """The profile or workload with the figures of the run; raises InputError if they do not go together."""
    count = len(run.comparison.iterations)
    with reading():
        about = f"{count} iterations of a run in {folder.name}"
        profile = calibrate_profile(given.profile, run.comparison, source=about)
        cluster = None if given.cluster is None else calibrate_cluster(given.cluster, run.comparison)
    return replace(given, profile=profile, cluster=cluster)
