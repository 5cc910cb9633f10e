"""A profile with the figures of several runs: each sets what layers cost at the sizes that it ran."""

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from api.inputs import question_of
from api.reporting.run_comparison import calibrate, compare_run
from api.tuning.short_run import WARM_UP, ShortRun
from planner.plan import Plan
from profiles.model_profile import Layer
from profiles.workload import Workload

Measured = Set[tuple[str, int]]
"""Layers and the numbers of samples at which a run has set what they cost."""


def _sizes_run(plan: Plan, microbatch_size: int | None) -> Mapping[str, int | None]:
    """Per layer the samples that a replica of its stage works on; None where that is unknown."""
    return {
        name: None if microbatch_size is None else microbatch_size // len(stage.replicas)
        for stage in plan.stages
        for name in stage.layers
    }


def calibrate_with(
    workload: Workload, plan: Plan, *, run: ShortRun, settled: Measured
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


def _merged(before: Workload, after: Workload, *, kept: Measured) -> Workload:
    """`after`, with the costs of `before` for layers and sizes that are `kept`."""
    own = before.profile.microbatch_size
    layers = tuple(
        _merge_layer(before.profile.by_name[layer.name], layer, kept=kept, own=own) for layer in after.profile.layers
    )
    return replace(after, profile=replace(after.profile, layers=layers))


def _merge_layer(before: Layer, after: Layer, *, kept: Measured, own: int | None) -> Layer:
    costs = tuple(
        old if (after.name, old.microbatch_size or own) in kept else new
        for old, new in zip(before.costs, after.costs, strict=True)
    )
    return replace(after, costs=costs)
