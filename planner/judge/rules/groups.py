"""Rules: every stage sits on device groups that can run it."""

from collections import Counter

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.reading import Reading
from planner.judge.samples import cut


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
        if stage.shard != "none" and len(stage.replicas) == 1:
            what = f"shard = {stage.shard!r} but one replica"
            message = f"Stage {number} has {what}, so there is no other replica to share with."
            yield Finding(f"stage {number}", "several replicas", 1, message)


def samples_cut(case: Case) -> Findings:
    """Replicas that take equal shares take whole samples: their number divides the size of a microbatch."""
    own = case.reading.profile.microbatch_size
    sizes = sorted(set(case.problem.microbatches or ([] if own is None else [own])))
    for number, stage in enumerate(case.plan.stages if not case.plan.dealing else ()):
        count = len(stage.replicas)
        for size in [each for each in sizes if count and each % count and not stage.samples][:1]:
            message = f"Stage {number} has {count} replicas, which does not divide microbatch_size = {size} samples."
            yield Finding(f"stage {number}", f"a number of replicas that divides {size}", count, message)


def samples_per_replica(case: Case) -> Findings:
    """A stage that says how many samples its replicas take says so for each of them."""
    for number, stage in enumerate(case.plan.stages):
        if stage.samples and len(stage.samples) != len(stage.replicas):
            counts = len(stage.replicas), len(stage.samples)
            message = f"Stage {number} has {counts[0]} replicas, but says how many samples {counts[1]} of them take."
            yield Finding(f"stage {number}", f"{counts[0]} numbers of samples", counts[1], message)


def samples_none(case: Case) -> Findings:
    """Every replica takes a sample at least."""
    for number, stage in enumerate(case.plan.stages):
        if min(stage.samples, default=1) < 1:
            message = f"Stage {number} has a replica that takes {min(stage.samples)} samples of a microbatch."
            yield Finding(f"stage {number}", "at least 1 sample per replica", list(stage.samples), message)


def samples_sum(case: Case) -> Findings:
    """The samples that the replicas of a stage take are those of a microbatch, whose size is known."""
    size = case.reading.profile.microbatch_size
    for number, stage in enumerate(case.plan.stages):
        if stage.samples and sum(stage.samples) != size:
            known = "null" if size is None else size
            message = (
                f"The replicas of stage {number} take {sum(stage.samples)} samples, but microbatch_size = {known}."
            )
            yield Finding(f"stage {number}", f"{known} samples in all", list(stage.samples), message)


def samples_needless(case: Case) -> Findings:
    """Replicas that take equally many samples say nothing of it."""
    for number, stage in enumerate(case.plan.stages):
        if stage.samples and len(set(stage.samples)) == 1:
            message = f"Stage {number} says that each of its replicas takes {stage.samples[0]} samples; leave it out."
            yield Finding(f"stage {number}", "unequal numbers of samples, or none", list(stage.samples), message)


def width_unmeasured(case: Case) -> Findings:
    """Every layer has a cost on the type and the width of the groups it is on, at the size of their share."""
    readings = [case.reading] if case.problem.microbatches is None else [reading for _, reading in case.reading.parts]
    yield from dict.fromkeys(finding for reading in readings for finding in _unmeasured(reading))


def _unmeasured(reading: Reading) -> Findings:
    """What has no cost for a microbatch of the size that is read."""
    known, layers = reading.devices, reading.layers
    for number, stage in enumerate(reading.plan.stages):
        taken = zip(stage.replicas, cut(stage), strict=True)
        kinds = {(known[group[0]].type, len(group), part.share) for group, part in taken if group and group[0] in known}
        for device_type, width, share in sorted(kinds):
            of_what = "" if share == 1 else f" for {share} of a microbatch"
            for name in stage.layers:
                if name in layers and not reading.is_measured(layers[name], device_type, width=width, share=share):
                    where = f"at width {width}{of_what}"
                    message = f"Layer {name!r} of stage {number} was not measured on {device_type!r} {where}."
                    yield Finding(f"stage {number}", f"costs and bytes of {name} {where}", "none", message)


RULES: Rules = {
    group_empty: "Name a device for every replica.",
    device_unknown: "Correct the device's name, or give the cluster that has it.",
    device_repeated: "Name the device once.",
    group_mixed: "Form the group of devices of one type.",
    width_uneven: "Give all replicas of the stage as many devices.",
    shard_alone: "Remove `shard`, or add a replica.",
    samples_cut: "Choose a number of replicas that divides the microbatch, or state `samples`.",
    samples_per_replica: "Correct the stage's `samples` or its replicas, or plan again.",
    samples_none: "Correct the stage's `samples` or its replicas, or plan again.",
    samples_sum: "Correct the stage's `samples` or its replicas, or plan again.",
    samples_needless: "Remove `samples`.",
    width_unmeasured: "Measure the layer there, or put the stage on other devices.",
}
