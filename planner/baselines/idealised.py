"""Idealised twins of a pipeline: its stages without transfers, and durations that are nearly equal made equal.

A greedy order decides in order of time: an I that arrives a nanosecond late loses its turn to an F, and every later
decision shifts with it. The order that is best on the twin does not have this fault, and is played on the real costs.

Such an order has no time to spare for transfers where devices are busy throughout. One twin makes up for it: halfway
through the pipeline an activation takes as long as on all transfers together, and a little more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.baselines.pipeline import Pipeline, Transfers
from planner.layout.costs import StageCost

TOLERANCES = (0.0, 0.05, 0.25, 0.6)
"""Durations that differ by no more than this share of the shortest one among them are made equal."""

_DELAYED_TOLERANCE = 0.05
"""Of the twin that has a delay."""


def twins(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Every twin that differs from the pipeline and from the twins before it."""
    seen = {pipeline}
    for tolerance in TOLERANCES:
        twin = replace(
            pipeline,
            original=pipeline,
            costs=_rounded(pipeline.costs, tolerance=tolerance),
            activations_to=_without_delay(pipeline.activations_to),
            gradients_to=_without_delay(pipeline.gradients_to),
        )
        if twin not in seen:
            seen.add(twin)
            yield twin
        if tolerance == _DELAYED_TOLERANCE and (delayed := _delayed_halfway(pipeline, twin)) not in seen:
            seen.add(delayed)
            yield delayed


def _delayed_halfway(pipeline: Pipeline, twin: Pipeline) -> Pipeline:
    """The twin with all the delays of activations in one place, rounded up to halves of a mean F."""
    total = sum(max((delay for _, delay in transfers), default=0) for transfers in pipeline.activations_to)
    half = max(1, sum(cost.forward_ns for cost in twin.costs) // (2 * twin.num_stages))
    halfway = twin.num_stages // 2 - 1
    delay = -(-total // half) * half
    activations = [
        tuple((target, delay) for target, _ in transfers) if stage == halfway else transfers
        for stage, transfers in enumerate(twin.activations_to)
    ]
    return replace(twin, activations_to=tuple(activations))


def _without_delay(targets: Sequence[Transfers]) -> tuple[Transfers, ...]:
    return tuple(tuple((stage, 0) for stage, _ in transfers) for transfers in targets)


def _rounded(costs: Sequence[StageCost], *, tolerance: float) -> tuple[StageCost, ...]:
    """The costs with the durations of all stages and kinds in classes, each at the mean of its class."""
    durations = [ns for cost in costs for ns in (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns)]
    mean_of = _class_means(durations, tolerance=tolerance)
    return tuple(
        replace(
            cost,
            forward_ns=mean_of[cost.forward_ns],
            input_grad_ns=mean_of[cost.input_grad_ns],
            weight_grad_ns=mean_of[cost.weight_grad_ns],
            backward_ns=round(cost.backward_ns * _scale(cost, mean_of)),
        )
        for cost in costs
    )


def _scale(cost: StageCost, mean_of: dict[int, int]) -> float:
    """How many times as long the backward pass takes on the twin."""
    whole = cost.input_grad_ns + cost.weight_grad_ns
    return (mean_of[cost.input_grad_ns] + mean_of[cost.weight_grad_ns]) / whole if whole else 1.0


def _class_means(durations: Sequence[int], *, tolerance: float) -> dict[int, int]:
    """By duration, the mean of its class: classes are cut from the shortest duration on."""
    found: dict[int, int] = {}
    members: list[int] = []
    for duration in sorted(durations):
        if members and duration > members[0] * (1 + tolerance):
            members = []
        members.append(duration)
        found |= dict.fromkeys(members, round(sum(members) / len(members)))
    return found
