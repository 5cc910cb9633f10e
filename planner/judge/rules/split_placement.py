"""Rules: split placement stays within what is supported."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.samples import is_whole
from planner.plan import Share, Stage


def _share_lists(stage: Stage) -> list[tuple[str, tuple[Share, ...]]]:
    return [("I", stage.input_grad_replicas), ("W", stage.weight_grad_replicas)]


def split_replicated(case: Case) -> Findings:
    """A stage with split placement has one replica of one device."""
    for number, stage in case.split_stages():
        if len(stage.replicas) != 1 or len(stage.replicas[0]) != 1:
            message = f"Stage {number} has split placement, but it is on more than one device itself."
            yield Finding(f"stage {number}", "one replica of one device", list(map(list, stage.replicas)), message)


def split_recomputes(case: Case) -> Findings:
    """A stage with split placement does not recompute."""
    for number, stage in case.split_stages():
        if stage.recompute:
            message = f"Stage {number} has split placement and recomputes its activations, which is not supported."
            yield Finding(f"stage {number}", "no recomputation", "recomputation", message)


def share_wide(case: Case) -> Findings:
    """A share of I or W is on one device."""
    for number, stage in case.split_stages():
        for kind, shares in _share_lists(stage):
            for share in shares:
                if len(share.group) != 1:
                    message = f"Stage {number} gives {kind} to a group of {len(share.group)} devices instead of one."
                    yield Finding(f"stage {number}", "one device", list(share.group), message)


def share_device_unknown(case: Case) -> Findings:
    """Every device named for I or W is a device of the cluster."""
    for number, stage in case.split_stages():
        for kind, shares in _share_lists(stage):
            for device in (name for share in shares for name in share.group):
                if device not in case.reading.devices:
                    message = f"Stage {number} gives {kind} to {shown(device, 80)!r}, which the cluster does not have."
                    yield Finding(f"stage {number}", "devices of the cluster", device, message)


def share_count(case: Case) -> Findings:
    """I is cut into two shares at most, W into none."""
    for number, stage in case.split_stages():
        for (kind, shares), most in zip(_share_lists(stage), (2, 1), strict=True):
            if len(shares) > most:
                message = f"Stage {number} cuts {kind} into {len(shares)} shares, above {most}."
                yield Finding(f"stage {number}", f"at most {most}", len(shares), message)


def share_sum(case: Case) -> Findings:
    """The shares of I, and of W, are positive and add up to 1."""
    for number, stage in case.split_stages():
        for kind, shares in _share_lists(stage):
            if shares and not _is_whole(shares):
                texts = [f"{share.numerator}/{share.denominator}" for share in shares]
                message = f"The shares of {kind} of stage {number}, {shown(', '.join(texts), 80)}, do not add up to 1."
                yield Finding(f"stage {number}", "positive shares of 1 in all", ", ".join(texts), message)


def _is_whole(shares: tuple[Share, ...]) -> bool:
    are_positive = all(share.numerator > 0 and share.denominator > 0 for share in shares)
    return are_positive and sum(Fraction(share.numerator, share.denominator) for share in shares) == 1


def share_cut(case: Case) -> Findings:
    """Every share of I is a whole number of samples."""
    size = case.reading.profile.microbatch_size
    for number, share, part in _parts(case):
        if not is_whole(part, size):
            text = f"{share.numerator}/{share.denominator}"
            message = f"Stage {number} gives {text} of I, of microbatch_size = {size} samples."
            yield Finding(f"stage {number}", "whole samples", text, message)


def share_unmeasured(case: Case) -> Findings:
    """Every layer has a cost on the devices that run I of its stage, at the size of their share."""
    reading = case.reading
    for number, share, part in _parts(case):
        types = [reading.devices[device].type for device in share.group[:1] if device in reading.devices]
        for layer in reading.layers_of(case.plan.stages[number]):
            for device_type in types:
                if reading.times_of(layer, device_type, width=1, share=part) is None:
                    name = layer.name
                    message = f"Layer {name!r} of stage {number} was not measured on {device_type!r} for {part} of I."
                    yield Finding(f"stage {number}", f"costs of {name} for {part} of a microbatch", "none", message)


def _parts(case: Case) -> Iterator[tuple[int, Share, Fraction]]:
    """The shares of I that are parts of something, with their stages' numbers."""
    for number, stage in case.split_stages():
        for share in stage.input_grad_replicas:
            if share.numerator > 0 and share.denominator > 0:
                yield number, share, Fraction(share.numerator, share.denominator)


def share_repeated(case: Case) -> Findings:
    """The shares of a list are on different devices."""
    for number, stage in case.split_stages():
        for kind, shares in _share_lists(stage):
            for group, count in Counter(share.group for share in shares).items():
                if count > 1:
                    message = f"Stage {number} names {', '.join(group)} {count} times for its {kind}."
                    yield Finding(f"stage {number}", f"{', '.join(group)} once", f"{count} times", message)


def share_needless(case: Case) -> Findings:
    """A device that alone runs I or W is not the owner: that is said by naming none."""
    for number, stage in case.split_stages():
        for kind, shares in _share_lists(stage):
            if len(shares) == 1 and shares[0].group in stage.replicas:
                message = f"Stage {number} names its own device for {kind}; name none instead."
                yield Finding(f"stage {number}", "another device, or none", list(shares[0].group), message)


def weight_share_foreign(case: Case) -> Findings:
    """A stage without trainable weights names no device for W."""
    for number, stage in case.split_stages():
        if stage.weight_grad_replicas and not case.reading.has_weight_grad[number]:
            devices = [list(share.group) for share in stage.weight_grad_replicas]
            message = f"Stage {number} names a device for W, but it has no weights to train."
            yield Finding(f"stage {number}", "no device for W", devices, message)


RULES: Rules = {
    split_replicated: "Give the stage one replica of one device, or remove its split placement.",
    split_recomputes: "Remove `recompute` or the split placement.",
    share_wide: "Name one device.",
    share_device_unknown: "Correct the device's name, or give the cluster that has it.",
    share_count: "Name two devices for I at most, and one for W.",
    share_sum: "Correct the shares so that they add up to 1.",
    share_cut: "Choose shares of whole samples.",
    share_unmeasured: "Measure the layer there, or name another device.",
    share_repeated: "Name different devices.",
    share_needless: "Remove the field.",
    weight_share_foreign: "Remove `weight_grad_replicas`.",
}
