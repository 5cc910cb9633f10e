"""Rules: stages that gather their weights can, and the plan says how many at a time, or gathers each layer."""

from planner.judge.case import Case, Finding, Findings, Rules
from planner.judge.stage_replicas import is_fully_sharded, is_gathered, is_split


def gathered_limit(case: Case) -> Findings:
    """`max_active_stages` is stated exactly where stages gather their weights, and is at least 1."""
    most, gathered = case.plan.max_active_stages, [*map(is_gathered, case.plan.stages)]
    if most is None and any(gathered):
        message = f"Stage {gathered.index(True)} gathers its weights, but the plan has no max_active_stages."
        yield Finding("max_active_stages", "a number of stages", "none", message)
    elif most is not None and not any(gathered):
        message = f"The plan has max_active_stages = {most}, but no stage gathers its weights."
        yield Finding("max_active_stages", "none", most, message)
    elif most is not None and most < 1:
        message = f"The plan has max_active_stages = {most}, so that no stage could run."
        yield Finding("max_active_stages", "at least 1", most, message)


def gathered_forbidden(case: Case) -> Findings:
    """Stages gather their weights only if `max_active_stages` of the options allows it, no more at a time than that."""
    most, limit = case.plan.max_active_stages, case.options.max_active_stages
    if most is not None and (limit is None or most > limit):
        allowed = "no gathered stages" if limit is None else f"at most {limit}"
        message = f"The plan has max_active_stages = {most}, where the options allow {allowed}."
        yield Finding("max_active_stages", allowed, most, message)


def gathered_ranks(case: Case) -> Findings:
    """The devices of a stage that gathers hold the same stages, all of which gather, each on single devices."""
    for number, stage in enumerate(case.plan.stages):
        if not is_gathered(stage):
            continue
        held = {device: sorted(case.replicas_on[device]) for group in stage.replicas for device in group}
        others = [each for each in held.values() if each != next(iter(held.values()))]
        plain = [each for each in next(iter(held.values())) if not is_gathered(case.plan.stages[each])]
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (is_split(stage) or stage.samples)
        if others or plain or not is_narrow or case.plan.dealing:
            message = f"The devices of stage {number} do not gather the same stages, each on single devices."
            yield Finding(f"stage {number}", "one list of gathered stages", held, message)


def gathered_order(case: Case) -> Findings:
    """The devices of a stage that gathers run their actions in one order."""
    for number, stage in enumerate(case.plan.stages):
        if is_gathered(stage):
            first, *others = (device for group in stage.replicas for device in group)
            for device in others:
                if case.plan.schedule[device] != case.plan.schedule[first]:
                    message = f"{device} gathers stage {number} with {first}, but runs its actions in another order."
                    yield Finding(f"device {device}", f"the order of {first}", "another", message)


def full_shard_forbidden(case: Case) -> Findings:
    """Replicas shard everything only if `fully_shard` allows it."""
    for number, stage in enumerate(case.plan.stages):
        if is_fully_sharded(stage) and not case.options.fully_shard:
            message = f"Stage {number} is fully sharded, which fully_shard = false forbids."
            yield Finding(f"stage {number}", "another shard", "full", message)


def full_shard_alone(case: Case) -> Findings:
    """A stage that is fully sharded is the plan's only one, on single devices that take equal shares."""
    for number, stage in enumerate(case.plan.stages):
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (is_split(stage) or stage.samples)
        is_alike = case.problem.microbatches is None and not case.plan.dealing
        if is_fully_sharded(stage) and not (len(case.plan.stages) == 1 and is_narrow and is_alike):
            message = f"Stage {number} is fully sharded, but not alone, or not on single devices with equal shares."
            yield Finding(f"stage {number}", "one stage on single devices", len(case.plan.stages), message)


def full_shard_order(case: Case) -> Findings:
    """The devices of a fully sharded stage run every microbatch's F and backward pass in turn, all in one order."""
    stage = case.plan.stages[0]
    if not is_fully_sharded(stage):
        return
    first = case.plan.schedule[stage.replicas[0][0]]
    back = "B" if case.reading.has_weight_grad[0] else "I"
    wanted = [(kind, 0, each.microbatch) for each in first[::2] for kind in ("F", back)]
    for device in (group[0] for group in stage.replicas):
        if list(map(tuple, case.plan.schedule[device])) != wanted:
            message = f"{device} does not run F and {back} of one microbatch after the other, as the others do."
            yield Finding(f"device {device}", f"F and {back} in turn, in one order", "another order", message)


RULES: Rules = {
    gathered_limit: "State `max_active_stages` with stages that gather, or remove it.",
    gathered_forbidden: "Let fewer stages gather at a time, or raise `max_active_stages`.",
    gathered_ranks: "Give these devices the same stages, all of which gather, on single devices.",
    full_shard_forbidden: "Remove `shard` from the stage, or allow `fully_shard`.",
    full_shard_alone: "Put all layers into one stage on single devices, or shard less.",
}

ORDER_RULES: Rules = {
    gathered_order: "Copy the order of one of these devices to the others.",
    full_shard_order: "Write F and B of one microbatch after the other on every device.",
}
