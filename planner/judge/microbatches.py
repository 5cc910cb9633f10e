"""Microbatches that differ, and whole ones that are dealt to pipelines (section 2, "Microbatches that differ").

A microbatch costs, holds and sends what its size says. Where a plan deals them, replica k of every stage is pipeline k,
runs its microbatches whole, and hands what it makes to replica k of the next stage:

    dealing [[2, 0], [1]]      pipeline 0: microbatches 2 and 0, whole        pipeline 1: microbatch 1, whole

So the figures of a plan are put together from plans of one size, a part for every size and pipeline.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy

from planner.judge.device_orders import Booleans, Integers
from planner.plan import Plan, Stage


class Batch(NamedTuple):
    """Microbatches of one size that the same device groups run."""

    size: int
    """Samples of each microbatch."""
    pipeline: int | None
    """Who runs them; None where nothing is dealt."""
    microbatches: tuple[int, ...]
    """Their numbers, ascending."""


def batches_of(sizes: Sequence[int], dealing: Sequence[Sequence[int]]) -> list[Batch]:
    """All microbatches by pipeline, then size."""
    assignments = enumerate(dealing) if dealing else [(None, range(len(sizes)))]
    found: dict[tuple[int, int | None], list[int]] = {}
    for pipeline, assignment in assignments:
        for microbatch in sorted(assignment):
            found.setdefault((sizes[microbatch], pipeline), []).append(microbatch)
    return [Batch(size, pipeline, tuple(group)) for (size, pipeline), group in sorted(found.items(), key=_place)]


def _place(entry: tuple[tuple[int, int | None], list[int]]) -> tuple[int, int]:
    (size, pipeline), _ = entry
    return pipeline or 0, size


def alone(plan: Plan, pipeline: int | None) -> Plan:
    """The plan as if there were no other pipeline; the plan itself where nothing is dealt."""
    if pipeline is None:
        return plan
    stages = tuple(replace(stage, replicas=(stage.replicas[pipeline],), shard="none") for stage in plan.stages)
    return replace(plan, stages=stages, dealing=())


def assignment_of(count: int, dealing: Sequence[Sequence[int]]) -> Integers:
    """[M] the pipeline of every microbatch."""
    found = numpy.full(count, -1, dtype=numpy.int64)
    for pipeline, assignment in enumerate(dealing):
        found[list(assignment)] = pipeline
    return found


def without_recomputation(plan: Plan) -> Plan:
    """The plan as it is for microbatches that keep everything."""
    return replace(plan, stages=tuple(replace(each, recompute=False) for each in plan.stages))


def kept_microbatches(stages: Sequence[Stage], *, count: int) -> Booleans:
    """[stages, microbatches] whether a stage that lists microbatches does not list this one: it keeps everything."""
    found = numpy.zeros((len(stages), count), dtype=numpy.bool_)
    for number, stage in enumerate(stages):
        if stage.recompute_microbatches:
            found[number] = True
            found[number, list(stage.recompute_microbatches)] = False
    return found
