"""What the loop of `pipeplan tune` does to the world: it plans here and runs plans on this host."""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from api.failures import InputError
from api.inputs import question_of
from api.reporting.run_comparison import calibrate, compare_run
from api.tuning.short_run import WARM_UP, ShortRun, choose_num_steps, run_plan_shortly
from api.tuning.tuning_candidates import RunnablePlan, make_candidates, predict
from api.tuning.tuning_loop import Trial
from planner.document import render_plan
from planner.errors import NoPlanFoundError
from planner.plan import Plan
from profiles.model_profile import Layer
from profiles.workload import Workload

PLANNING_S, PLANNING_SHARE, LEAST_PLANNING_S = 5.0, 0.04, 1.0
"""Seconds of planning per question: at most, as a part of the time limit, and at least."""


class HostWorkbench:
    """A model, and a folder for what its runs write."""

    def __init__(
        self,
        model: str,
        *,
        folder: Path,
        started: float,
        time_limit_s: float,
        steps: int | None,
        should_stop: Callable[[], bool],
        hear: Callable[[str], None],
    ) -> None:
        """`started`: by `time.monotonic`; `steps`: iterations per run, or as many as a few seconds take."""
        self.model, self.folder, self.started, self.steps = model, folder, started, steps
        self.planning_s = min(PLANNING_S, max(LEAST_PLANNING_S, PLANNING_SHARE * time_limit_s))
        self.is_asked_to_stop, self.hear = should_stop, hear
        self._settled: frozenset[tuple[str, int]] = frozenset()
        self._num_runs = 0

    def elapsed_s(self) -> float:
        """Since the command began."""
        return time.monotonic() - self.started

    def plan(self, workload: Workload) -> Sequence[RunnablePlan]:
        """Candidates by this profile."""
        try:
            return make_candidates(
                workload,
                seconds=self.planning_s,
                should_stop=self.is_asked_to_stop,
                hear=lambda name: self.hear(f"planning: {name}"),
            )
        except NoPlanFoundError:
            if self.is_asked_to_stop():
                raise KeyboardInterrupt from None
            raise

    def predict(self, workload: Workload, plan: Plan) -> int | None:
        """What it takes by this profile."""
        return predict(workload, plan)

    def run(self, candidate: RunnablePlan) -> ShortRun:
        """In fresh processes."""
        self._num_runs += 1
        path = self.folder / f"plan-{candidate.key[:12]}.json"
        path.write_text(render_plan(candidate.plan), encoding="utf-8")
        return run_plan_shortly(
            path,
            candidate.plan,
            model=self.model,
            steps=self.steps or choose_num_steps(candidate.predicted_ns),
            folder=self.folder / f"run-{self._num_runs}",
            should_stop=self.is_asked_to_stop,
        )

    def calibrate(self, workload: Workload, trials: Sequence[Trial]) -> Workload:
        """Of each plan's runs the one of median duration is used."""
        for trial in trials:
            ordered = sorted(trial.runs, key=lambda run: run.median_ns)
            run = ordered[(len(ordered) - 1) // 2]
            try:
                plan = trial.candidate.plan
                workload, self._settled, trial.causes = calibrate_with(workload, plan, run=run, settled=self._settled)
            except InputError as error:
                self.hear(f"not calibrated with {trial.candidate.name}: {error}")
        return workload


_Measured = Set[tuple[str, int]]
"""Layers and the numbers of samples at which a run has set what they cost."""


def _sizes_run(plan: Plan, microbatch_size: int | None) -> Mapping[str, int | None]:
    """Per layer the samples that a replica of its stage works on; None where that is unknown."""
    return {
        name: None if microbatch_size is None else microbatch_size // len(stage.replicas)
        for stage in plan.stages
        for name in stage.layers
    }


def calibrate_with(
    workload: Workload, plan: Plan, *, run: ShortRun, settled: _Measured
) -> tuple[Workload, frozenset[tuple[str, int]], str]:
    """The workload with the figures of a run, what is settled now, and where the run's difference came from.

    Raises InputError if they do not go together.
    """
    from api.reporting.run_report import describe_causes

    folder = Path(run.folder)
    seen = compare_run(question_of(plan, workload), plan, folder=folder, source="the plan", warm_up=WARM_UP)
    after = calibrate(seen, workload, folder=folder)
    sizes = _sizes_run(plan, workload.profile.microbatch_size)
    ran = frozenset((name, size) for name, size in sizes.items() if size is not None)
    merged = _merged(workload, after, kept=settled - ran)
    return merged, frozenset(settled) | ran, describe_causes(seen)


def _merged(before: Workload, after: Workload, *, kept: _Measured) -> Workload:
    """`after`, with the costs of `before` for layers and sizes that are `kept`."""
    own = before.profile.microbatch_size
    layers = tuple(
        _merge_layer(before.profile.by_name[layer.name], layer, kept=kept, own=own) for layer in after.profile.layers
    )
    return replace(after, profile=replace(after.profile, layers=layers))


def _merge_layer(before: Layer, after: Layer, *, kept: _Measured, own: int | None) -> Layer:
    costs = tuple(
        old if (after.name, old.microbatch_size or own) in kept else new
        for old, new in zip(before.costs, after.costs, strict=True)
    )
    return replace(after, costs=costs)
