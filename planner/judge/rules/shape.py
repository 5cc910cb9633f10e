"""Rules: the plan is made of what it should be made of."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from planner.actions import Action
from planner.documents.plan_values import DEGREES
from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.device_orders import are_actions
from planner.plan import Evidence, Plan, ProblemReference, RentalResult, Stage
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
    for name, hint in _hints(Plan).items():
        if name not in ("problem", "stages", "schedule", "evidence") and not _fits(getattr(plan, name), hint):
            yield f"the field {name}"
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
    """Fields have their types, no layer says twice how it recomputes, and degrees have known names."""
    if not all(_fits(getattr(stage, name), hint) for name, hint in _hints(Stage).items()):
        return False
    layers = [] if isinstance(stage.recompute, bool) else [layer for layer, _ in stage.recompute]
    return len(set(layers)) == len(layers) and all(name in DEGREES for name, _ in stage.degrees)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the type that a field has, exactly, and numbers are those of microbatches and samples."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        many = parts[-1] is ...
        is_long = isinstance(value, tuple) and (many or len(value) == len(parts))
        return is_long and all(map(_fits, cast("Any", value), repeat(parts[0]) if many else parts))
    if hint is Action:
        return are_actions((value,))
    if is_dataclass(hint):
        return isinstance(value, cast("type", hint)) and all(
            _fits(getattr(value, name), own) for name, own in _hints(cast("Any", hint)).items()
        )
    return type(value) is hint and (not isinstance(value, int) or abs(value) <= MAX_SAMPLES)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


RULES: Rules = {
    malformed: "Correct the field; `pipeplan schema plan` prints the form.",
}
