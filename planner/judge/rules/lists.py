"""Rules: every device has its list, and the list has exactly its actions."""

from collections.abc import Iterator

import numpy

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.costs import KINDS
from planner.judge.device_orders import Booleans
from planner.judge.stage_replicas import is_split


def _named(case: Case, chosen: Booleans) -> Iterator[tuple[str, int]]:
    """Devices and rows of the actions that are chosen; devices without work have no list, another rule says."""
    for row in numpy.flatnonzero(chosen).tolist():
        device = case.reading.orders.device_name(row)
        if device in case.replicas_on:
            yield device, row


def list_missing(case: Case) -> Findings:
    """Every device that works for a stage has a list of actions."""
    for device, held in case.replicas_on.items():
        if device not in case.plan.schedule:
            message = f"Device {device} works for stage {min(held)}, but the schedule has no list for it."
            yield Finding(f"device {device}", "a list of actions", "none", message)


def list_foreign(case: Case) -> Findings:
    """Only devices that work for a stage have a list."""
    for device in case.plan.schedule:
        if device not in case.replicas_on:
            message = f"The schedule has a list for {shown(device, 80)!r}, which works for no stage."
            yield Finding(f"device {shown(device, 80)}", "no list", "a list", message)


def action_foreign(case: Case) -> Findings:
    """A device runs only actions of stages it works for, of known kinds and for microbatches of the problem."""
    orders, last = case.reading.orders, case.problem.num_microbatches - 1
    for device, row in _named(case, _is_unknown(case)):
        expected = f"stages {sorted(case.replicas_on[device])}, microbatches 0 to {last}"
        action = shown(str(orders.action(row)), 80)
        yield Finding(f"{device}: {action}", expected, action, f"{device} cannot run {action}: it has {expected}.")


def _is_unknown(case: Case) -> Booleans:
    """[actions] whether stage, kind or microbatch is none of the device's."""
    orders = case.reading.orders
    return (case.reading.runner < 0) | (orders.microbatch < 0) | (orders.kind < 0)


def action_undealt(case: Case) -> Findings:
    """Where microbatches are dealt, a device runs only those of its pipeline."""
    orders = case.reading.orders
    for device, row in _named(case, ~_is_unknown(case) & ~case.reading.is_assigned):
        action = orders.action(row)
        number = case.replicas_on[device][action.stage].number
        own = shown(sorted(case.plan.dealing[number]), 80)
        message = f"{device} runs {action}, but its pipeline {number} is dealt the microbatches {own}."
        yield Finding(f"{device}: {action}", f"microbatches {own}", action.microbatch, message)


def _misplaced(case: Case, kinds: str) -> Iterator[tuple[str, int]]:
    """Actions of those kinds that the device's stage replica does not run."""
    orders, runner = case.reading.orders, case.reading.runner
    runs = [[kind in replica.kinds for kind in KINDS] for replica in case.reading.replicas]
    is_its_own = numpy.array(runs, dtype=numpy.bool_).reshape(-1, len(KINDS))[runner, orders.kind]
    codes = [KINDS.index(kind) for kind in kinds]
    return _named(case, (runner >= 0) & numpy.isin(orders.kind, codes) & ~is_its_own)


def action_misplaced(case: Case) -> Findings:
    """With split placement a device runs only the kinds of actions that the stage gives it."""
    for device, row in _misplaced(case, "FIW"):
        action = case.reading.orders.action(row)
        kinds = ", ".join(case.replicas_on[device][action.stage].kinds)
        message = f"{device} runs {action}, but of stage {action.stage} it has only {kinds}."
        yield Finding(f"{device}: {action}", kinds, action.kind, message)


def split_fused(case: Case) -> Findings:
    """A stage with split placement runs no B."""
    for device, row in _misplaced(case, "B"):
        action = case.reading.orders.action(row)
        message = f"{device} runs {action}, but I and W of stage {action.stage} are placed apart."
        yield Finding(f"{device}: {action}", "I and W", "B", message)


def action_repeated(case: Case) -> Findings:
    """No device runs an action twice."""
    for row in case.reading.positions.repeated().tolist():
        device, action = case.reading.orders.device_name(row), case.reading.orders.action(row)
        message = f"{device} runs {action} more than once."
        yield Finding(f"{device}: {action}", "once", "more than once", message)


def action_missing(case: Case) -> Findings:
    """A device runs, for every stage it works for and every microbatch, its F, and B, or I with W if there is a W."""
    index = {device: number for number, device in enumerate(case.reading.orders.devices)}
    for device, held in case.replicas_on.items():
        for stage, replica in held.items() if device in index else ():
            every = case.reading.taken_by(replica)
            where = numpy.full(len(every), index[device]), numpy.full(len(every), stage)
            has = {kind: case.reading.positions.find(*where, kind=kind, m=every) >= 0 for kind in KINDS}
            has_weight_grad = case.reading.has_weight_grad[stage]
            separate = ~has["B"] if has_weight_grad else numpy.ones(len(every), dtype=numpy.bool_)
            missing = {"F": ~has["F"], "I": separate & ~has["I"], "W": separate & ~has["W"] & has_weight_grad}
            for kind in (kind for kind in missing if kind in replica.kinds):
                for microbatch in every[missing[kind]].tolist():
                    text = f"{stage}{kind}{microbatch}"
                    yield Finding(f"{device}: {text}", "once", "never", f"{device} never runs {text}.")


def backward_mixed(case: Case) -> Findings:
    """Where a device runs B, it runs neither I nor W for the same microbatch."""
    orders, positions = case.reading.orders, case.reading.positions
    fused = (orders.kind == KINDS.index("B")) & (orders.stage >= 0) & (orders.microbatch >= 0)
    rows = numpy.flatnonzero(fused)
    both = (positions.twin(rows, "I") >= 0) | (positions.twin(rows, "W") >= 0)
    for row in rows[both].tolist():
        device, action = orders.device_name(row), orders.action(row)
        message = f"{device} runs {action} and again its part I or W on its own."
        yield Finding(f"{device}: {action}", "B, or I and W", "both", message)


def weight_grad_foreign(case: Case) -> Findings:
    """A stage without trainable weights has neither W nor B."""
    orders, trains = case.reading.orders, numpy.array(case.reading.has_weight_grad, dtype=numpy.bool_)
    is_backward = numpy.isin(orders.kind, [KINDS.index("W"), KINDS.index("B")])
    for device, row in _named(case, is_backward & (case.reading.runner >= 0) & ~trains[orders.stage]):
        action = orders.action(row)
        if not is_split(case.plan.stages[action.stage]) or device in case.groups_on:
            message = f"{device} runs {action}, but stage {action.stage} has no weights to train: it has only F and I."
            yield Finding(f"{device}: {action}", "F and I only", action.kind, message)


def group_order(case: Case) -> Findings:
    """The devices of a group run the actions of its stage in the same order."""
    for number, stage in enumerate(case.plan.stages):
        for group in (group for group in stage.replicas if len(group) > 1):
            orders = {d: [a for a in case.plan.schedule.get(d, ()) if a.stage == number] for d in group}
            first = orders[group[0]]
            for device, order in orders.items():
                if order != first and sorted(order) == sorted(first):
                    index = next(i for i, action in enumerate(order) if action != first[i])
                    message = (
                        f"{group[0]} and {device} share stage {number}, but {group[0]} runs {first[index]} "
                        f"where {device} runs {order[index]}."
                    )
                    yield Finding(f"stage {number}", str(first[index]), str(order[index]), message)


def dealing_order(case: Case) -> Findings:
    """A pipeline begins its microbatches, at its first stage, in the order in which the dealing lists them."""
    for pipeline, assignment in enumerate(case.plan.dealing):
        device = case.plan.stages[0].replicas[pipeline][0]
        device_order = case.plan.schedule.get(device, ())
        begun = tuple(action.microbatch for action in device_order if (action.kind, action.stage) == ("F", 0))
        if begun != tuple(assignment) and sorted(begun) == sorted(assignment):
            message = f"Pipeline {pipeline} begins its microbatches as {shown(begun, 80)}, not as it is dealt them."
            yield Finding(f"pipeline {pipeline}", shown(list(assignment), 80), shown(list(begun), 80), message)


RULES: Rules = {
    list_missing: "Add the device's list to `schedule`.",
    list_foreign: "Remove the device's list from `schedule`.",
    action_foreign: "Remove the action, or correct its stage, kind or microbatch.",
    action_undealt: "Move the action to a device of the microbatch's pipeline.",
    action_misplaced: "Move the action to the device that `input_grad_replicas` or `weight_grad_replicas` names.",
    split_fused: "Write I and W instead of B.",
    action_repeated: "Remove one of the two.",
    action_missing: "Add the action to the device's list.",
    backward_mixed: "Write B, or I and W, not both.",
    weight_grad_foreign: "Write I instead, without W.",
    group_order: "Copy the stage's order from one device of the group to the others.",
    dealing_order: "Change the order of `dealing` or of the first stage.",
}
