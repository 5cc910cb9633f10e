"""Rules: every device has its list, and the list has exactly its actions."""

from collections import Counter
from collections.abc import Iterator

from planner.actions import KINDS, Action
from planner.census import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from planner.rules.case import Case, Finding, Findings, shown


def list_missing(case: Case) -> Findings:
    """Every device that works for a stage has a list of actions."""
    for device, held in case.kinds_on.items():
        if device not in case.plan.schedule:
            message = f"Device {device} works for stage {min(held)}, but the schedule has no list for it."
            yield Finding(f"device {device}", "a list of actions", "none", message)


def list_foreign(case: Case) -> Findings:
    """Only devices that work for a stage have a list."""
    for device in case.plan.schedule:
        if device not in case.kinds_on:
            message = f"The schedule has a list for {shown(device, 80)!r}, which works for no stage."
            yield Finding(f"device {shown(device, 80)}", "no list", "a list", message)


def action_foreign(case: Case) -> Findings:
    """A device runs only actions of stages it works for, of known kinds and for microbatches of the problem."""
    if case.census is not None:
        return  # there is none without all actions in place
    for device, counts in case.tally.items():
        held, total = case.kinds_on[device], case.problem.num_microbatches
        for action in counts:
            if action.stage not in held or not 0 <= action.microbatch < total or action.kind not in KINDS:
                expected = f"stages {sorted(held)}, microbatches 0 to {total - 1}"
                message = f"{device} cannot run {action}: it has {expected}."
                yield Finding(f"{device}: {action}", expected, str(action), message)


def action_misplaced(case: Case) -> Findings:
    """With split placement a device runs only the kinds of actions that the stage gives it."""
    if case.census is not None:
        return  # there is none with split placement
    for device, counts in case.tally.items():
        for action in counts:
            kinds = case.kinds_on[device].get(action.stage, "FIW")
            if action.kind in ("F", "I", "W") and action.kind not in kinds:
                message = f"{device} runs {action}, but of stage {action.stage} it has only {', '.join(kinds)}."
                yield Finding(f"{device}: {action}", ", ".join(kinds), action.kind, message)


def split_fused(case: Case) -> Findings:
    """A stage with split placement runs no B."""
    if case.census is not None:
        return  # there is none with split placement
    for device, counts in case.tally.items():
        for action in counts:
            if action.kind == "B" and action.kind not in case.kinds_on[device].get(action.stage, "B"):
                message = f"{device} runs {action}, but I and W of stage {action.stage} are placed apart."
                yield Finding(f"{device}: {action}", "I and W", "B", message)


def action_repeated(case: Case) -> Findings:
    """No device runs an action twice."""
    if case.census is not None and not case.census.is_repeated:
        return
    for device, counts in case.tally.items():
        if len(counts) < len(case.plan.schedule[device]):
            for action, count in counts.items():
                if count > 1:
                    message = f"{device} runs {action} {count} times."
                    yield Finding(f"{device}: {action}", "once", f"{count} times", message)


def action_missing(case: Case) -> Findings:
    """A device runs, for every stage it works for and every microbatch, its F, and B, or I with W if there is a W."""
    if (census := case.census) is not None and set(case.kinds_on) <= set(case.plan.schedule):
        is_split = census.has(INPUT_GRAD) & (census.has(WEIGHT_GRAD) | ~case.has_weights)
        if (census.has(FORWARD) & (is_split | (census.has(BACKWARD) & case.has_weights))).all():
            return
    for device, stage, counts in _lists(case):
        kinds = case.kinds_on[device][stage]
        for microbatch in range(case.problem.num_microbatches):
            needed = ["F"]
            if not case.has_weight_grad[stage]:
                needed += "I"
            elif ("B", stage, microbatch) not in counts:
                needed += "IW"
            for kind in needed:
                if kind in kinds and (kind, stage, microbatch) not in counts:
                    text = f"{stage}{kind}{microbatch}"
                    yield Finding(f"{device}: {text}", "once", "never", f"{device} never runs {text}.")


def _lists(case: Case) -> Iterator[tuple[str, int, Counter[Action]]]:
    """Every device that has a list, with every stage it holds and the count of its actions."""
    for device, counts in case.tally.items():
        for stage in case.kinds_on[device]:
            yield device, stage, counts


def backward_mixed(case: Case) -> Findings:
    """Where a device runs B, it runs neither I nor W for the same microbatch."""
    if (census := case.census) is not None:
        parts = census.has(INPUT_GRAD) | census.has(WEIGHT_GRAD)
        if not (census.has(BACKWARD) & parts).any():
            return
    for device, counts in case.tally.items():
        for kind, stage, microbatch in counts:
            if kind == "B" and (("I", stage, microbatch) in counts or ("W", stage, microbatch) in counts):
                message = f"{device} runs {stage}B{microbatch} and again its part I or W on its own."
                yield Finding(f"{device}: {stage}B{microbatch}", "B, or I and W", "both", message)


def weight_grad_foreign(case: Case) -> Findings:
    """A stage without trainable weights has neither W nor B."""
    if (census := case.census) is not None:
        whole = census.has(WEIGHT_GRAD) | census.has(BACKWARD)
        if not (whole & ~case.has_weights).any():
            return
    for device, counts in case.tally.items():
        for action in counts:
            is_held = action.stage in case.groups_on.get(device, ())
            if action.kind in ("W", "B") and is_held and not case.has_weight_grad[action.stage]:
                message = (
                    f"{device} runs {action}, but stage {action.stage} has no weights to train: it has only F and I."
                )
                yield Finding(f"{device}: {action}", "F and I only", action.kind, message)


def group_order(case: Case) -> Findings:
    """The devices of a group run the actions of its stage in the same order."""
    for number, stage in enumerate(case.plan.stages):
        for group in (group for group in stage.replicas if len(group) > 1):
            words = {d: [a for a in case.plan.schedule.get(d, ()) if a.stage == number] for d in group}
            first = words[group[0]]
            for device, word in words.items():
                if word != first and sorted(word) == sorted(first):
                    index = next(i for i, action in enumerate(word) if action != first[i])
                    message = (
                        f"{group[0]} and {device} share stage {number}, but {group[0]} runs {first[index]} "
                        f"where {device} runs {word[index]}."
                    )
                    yield Finding(f"stage {number}", str(first[index]), str(word[index]), message)


RULES = (
    list_missing,
    list_foreign,
    action_foreign,
    action_misplaced,
    split_fused,
    action_repeated,
    action_missing,
    backward_mixed,
    weight_grad_foreign,
    group_order,
)
"""The rules of this room, in the order in which they are applied."""
