"""Rules: every stage sits on device groups that can run it."""

from collections import Counter

from planner.judge.case import Case, Finding, Findings, shown
from planner.judge.samples import equal_share


def group_empty(case: Case) -> Findings:
    """Every stage has a replica, and every replica a device."""
    for number, stage in enumerate(case.plan.stages):
        if not stage.replicas or not all(stage.replicas):
            message = f"Stage {number} has a replica without a device, or no replica at all."
            yield Finding(
                f"stage {number}", "at least one device per replica", list(map(list, stage.replicas)), message
            )


def device_unknown(case: Case) -> Findings:
    """Every device of a stage is a device of the cluster."""
    for device, held in case.groups_on.items():
        if device not in case.reading.devices:
            message = f"Stage {min(held)} is on device {shown(device, 80)!r}, which the cluster does not have."
            yield Finding(f"stage {min(held)}", "devices of the cluster", device, message)


def device_repeated(case: Case) -> Findings:
    """No stage names a device twice."""
    for number, stage in enumerate(case.plan.stages):
        for device, count in Counter(name for group in stage.replicas for name in group).items():
            if count > 1:
                message = f"Stage {number} names device {shown(device, 80)!r} {count} times."
                yield Finding(f"stage {number}", f"{device} once", f"{count} times", message)


def group_mixed(case: Case) -> Findings:
    """The devices of a group are of one type."""
    known = case.reading.devices
    for number, stage in enumerate(case.plan.stages):
        for group in stage.replicas:
            types = sorted({known[device].type for device in group if device in known})
            if len(types) > 1:
                message = f"Stage {number} shares a replica among devices of different types: {', '.join(types)}."
                yield Finding(f"stage {number}", "devices of one type", ", ".join(types), message)


def width_uneven(case: Case) -> Findings:
    """The replicas of a stage have equally many devices."""
    for number, stage in enumerate(case.plan.stages):
        widths = sorted({len(group) for group in stage.replicas if group})
        if len(widths) > 1:
            message = f"The replicas of stage {number} have different numbers of devices: {widths}."
            yield Finding(f"stage {number}", "one width", widths, message)


def shard_alone(case: Case) -> Findings:
    """Only a stage with several replicas shards the optimizer's state."""
    for number, stage in enumerate(case.plan.stages):
        if stage.shard == "optimizer" and len(stage.replicas) == 1:
            message = f"Stage {number} has shard = 'optimizer' but one replica, which has nobody to share with."
            yield Finding(f"stage {number}", "several replicas", 1, message)


def samples_cut(case: Case) -> Findings:
    """Every replica takes a whole number of samples: the number of replicas divides the size of a microbatch."""
    size = case.reading.profile.microbatch_size
    for number, stage in enumerate(case.plan.stages):
        count = len(stage.replicas)
        if size is not None and count and size % count:
            message = f"Stage {number} has {count} replicas, which does not divide microbatch_size = {size} samples."
            yield Finding(f"stage {number}", f"a number of replicas that divides {size}", count, message)


def width_unmeasured(case: Case) -> Findings:
    """Every layer has a cost on the type and the width of the groups it is on, at the size of their share."""
    known, layers = case.reading.devices, case.reading.layers
    for number, stage in enumerate(case.plan.stages):
        kinds = {(known[group[0]].type, len(group)) for group in stage.replicas if group and group[0] in known}
        share = equal_share(len(stage.replicas))
        of_what = "" if share == 1 else f" for {share} of a microbatch"
        for device_type, width in sorted(kinds):
            for name in stage.layers:
                if name in layers and not case.reading.is_measured(layers[name], device_type, width=width, share=share):
                    where = f"at width {width}{of_what}"
                    message = f"Layer {name!r} of stage {number} was not measured on {device_type!r} {where}."
                    yield Finding(f"stage {number}", f"costs and bytes of {name} {where}", "none", message)


RULES = (
    group_empty,
    device_unknown,
    device_repeated,
    group_mixed,
    width_uneven,
    shard_alone,
    samples_cut,
    width_unmeasured,
)
"""The rules of this page, in the order in which they are applied."""
