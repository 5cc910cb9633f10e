"""Rules: the plan is made of what it should be made of."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.actions import Offload
from planner.documents.plan_values import DEGREES
from planner.judge.case import Case, Finding, Findings, shown
from planner.judge.device_orders import are_actions
from planner.plan import SHARDS, Evidence, ProblemReference, RentalResult, Share, Stage
from profiles.field_rules import MAX_SAMPLES


def malformed(case: Case) -> Findings:
    """Stages, groups, schedule and reference hold values of the right types."""
    plan = case.plan
    for text in _type_errors(plan):
        yield Finding(text, "a value of the right type", "another", f"{text} is not what the plan format asks for.")


def _type_errors(plan: Any) -> Iterator[str]:
    if not isinstance(plan.problem, ProblemReference) or not isinstance(plan.evidence, Evidence | None):
        yield "the problem or the evidence"
    elif not _is_size(plan.problem.microbatch_size):
        yield "the size of a microbatch"
    elif not _are_numbers(plan.problem.microbatches or ()):
        yield "the sizes of the microbatches"
    elif plan.evidence is not None and not _is_rental(plan.evidence.rental):
        yield "the cost in the evidence"
    if type(plan.max_active_stages) not in (int, type(None)):
        yield "the number of active stages"
    if not isinstance(plan.dealing, tuple) or not all(map(_are_numbers, plan.dealing)):
        yield "the dealing"
    if not isinstance(plan.stages, tuple) or not isinstance(plan.schedule, Mapping):
        yield "the list of stages or the schedule"
        return
    for number, stage in enumerate(plan.stages):
        if not isinstance(stage, Stage) or not _is_stage(stage):
            yield f"stage {number}"
    for device, order in plan.schedule.items():
        is_order = isinstance(order, tuple) and are_actions(order)
        if not isinstance(device, str) or not is_order:
            yield f"the list of {shown(device, 80)}"


def _is_size(value: object) -> bool:
    return value is None or (type(value) is int and 1 <= value <= MAX_SAMPLES)


def _are_numbers(value: object) -> bool:
    return isinstance(value, tuple) and all(type(each) is int and 0 <= each <= MAX_SAMPLES for each in value)


def _is_rental(value: object) -> bool:
    is_whole = isinstance(value, RentalResult) and _is_names(value.devices) and isinstance(value.certificate, Mapping)
    return value is None or is_whole


def _is_stage(stage: Stage) -> bool:
    return (
        _is_names(stage.layers)
        and isinstance(stage.replicas, tuple)
        and all(_is_names(group) for group in stage.replicas)
        and (isinstance(stage.recompute, bool) or _is_map(stage.recompute))
        and _are_numbers(stage.recompute_microbatches)
        and isinstance(stage.offload, tuple)
        and all(map(_is_offload, stage.offload))
        and stage.shard in SHARDS
        and isinstance(stage.degrees, tuple)
        and all(name in DEGREES and type(count) is int for name, count in stage.degrees)
        and all(map(_is_shares, (stage.input_grad_replicas, stage.weight_grad_replicas)))
        and isinstance(stage.samples, tuple)
        and all(type(count) is int and abs(count) <= MAX_SAMPLES for count in stage.samples)
    )


def _is_offload(value: object) -> bool:
    return (
        isinstance(value, Offload)
        and _are_numbers((value.microbatch,))
        and are_actions((value.freed_before, value.fetched_before))
    )


def _is_map(value: object) -> bool:
    """Layers and kinds of recomputation, no layer twice."""
    pairs = isinstance(value, tuple) and all(_is_names(pair) and len(pair) == 2 for pair in value)
    return pairs and isinstance(value, tuple) and len({layer for layer, _ in value}) == len(value)


def _is_shares(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(share, Share)
        and _is_names(share.group)
        and type(share.numerator) is int
        and type(share.denominator) is int
        for share in value
    )


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


RULES = (malformed,)
"""The rules of this page, in the order in which they are applied."""
