"""Rules: the plan is made of what it should be made of."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.actions import Action
from planner.plan import Evidence, ProblemReference, Share, Stage
from planner.rules.case import Case, Finding, Findings, shown


def malformed(case: Case) -> Findings:
    """Stages, groups, schedule and reference hold values of the right types."""
    plan = case.plan
    for text in _type_errors(case, plan):
        yield Finding(text, "a value of the right type", "another", f"{text} is not what the plan format asks for.")


def _type_errors(case: Case, plan: Any) -> Iterator[str]:
    if not isinstance(plan.problem, ProblemReference) or not isinstance(plan.evidence, Evidence | None):
        yield "the problem or the evidence"
    if not isinstance(plan.stages, tuple) or not isinstance(plan.schedule, Mapping):
        yield "the list of stages or the schedule"
        return
    for number, stage in enumerate(plan.stages):
        if not isinstance(stage, Stage) or not _is_stage(stage):
            yield f"stage {number}"
    are_tuples = all(isinstance(word, tuple) for word in plan.schedule.values())
    are_actions = are_tuples and case.words is not None
    for device, word in plan.schedule.items():
        is_word = are_actions or (isinstance(word, tuple) and all(map(_is_action, word)))
        if not isinstance(device, str) or not is_word:
            yield f"the list of {shown(device, 80)}"


def _is_stage(stage: Stage) -> bool:
    return (
        _is_names(stage.layers)
        and isinstance(stage.replicas, tuple)
        and all(_is_names(group) for group in stage.replicas)
        and isinstance(stage.recompute, bool)
        and all(map(_is_shares, (stage.input_grad_replicas, stage.weight_grad_replicas)))
    )


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


def _is_action(action: object) -> bool:
    return (
        type(action) is Action
        and type(action.stage) is int
        and type(action.microbatch) is int
        and isinstance(action.kind, str)
    )


RULES = (malformed,)
"""The rules of this room, in the order in which they are applied."""
