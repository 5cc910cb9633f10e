"""Rules: the plan does only what the options allow."""

import numpy

from planner.judge.case import Case, Finding, Findings, Rules
from planner.judge.costs import KINDS
from planner.judge.stage_replicas import is_sharded


def split_placement_forbidden(case: Case) -> Findings:
    """Stages name other devices for I or W only if `split_placement` allows it."""
    for number, _ in case.split_stages() if not case.options.split_placement else ():
        message = f"Stage {number} places I or W on other devices, which split_placement = false forbids."
        yield Finding(f"stage {number}", "I and W on its own device", "other devices", message)


def width_limit(case: Case) -> Findings:
    """No group has more devices than `max_width`."""
    for number, stage in enumerate(case.plan.stages):
        width = max(map(len, stage.replicas))
        if width > case.options.max_width:
            message = f"Stage {number} has groups of {width} devices, above max_width = {case.options.max_width}."
            yield Finding(f"stage {number}", f"at most {case.options.max_width}", width, message)


def stages_per_device(case: Case) -> Findings:
    """No device holds more stages than `max_stages_per_device`."""
    limit = case.options.max_stages_per_device
    for device, held in case.groups_on.items():
        if len(held) > limit:
            message = f"Device {device} holds {len(held)} stages, above max_stages_per_device = {limit}."
            yield Finding(f"device {device}", f"at most {limit}", len(held), message)


def replica_limit(case: Case) -> Findings:
    """No stage has more replicas than `max_replicas`."""
    most = len(case.reading.devices)
    limit = min(case.options.max_replicas or most, most)
    for number, stage in enumerate(case.plan.stages):
        if len(stage.replicas) > limit:
            message = f"Stage {number} has {len(stage.replicas)} replicas, above max_replicas = {limit}."
            yield Finding(f"stage {number}", f"at most {limit}", len(stage.replicas), message)


def replicas_uneven(case: Case) -> Findings:
    """Without `uneven_replication` all replicated stages have the same number of replicas."""
    counts = sorted({len(stage.replicas) for stage in case.plan.stages if len(stage.replicas) > 1})
    if len(counts) > 1 and not case.options.uneven_replication:
        message = f"Stages have different numbers of replicas ({counts}), which uneven_replication = false forbids."
        yield Finding("the stages", "one number of replicas", counts, message)


def unequal_forbidden(case: Case) -> Findings:
    """Replicas take unequal shares of the samples only if `unequal_shares` allows it."""
    for number, stage in enumerate(case.plan.stages):
        if stage.samples and not case.options.unequal_shares:
            message = f"The replicas of stage {number} take unequal shares, which unequal_shares = false forbids."
            yield Finding(f"stage {number}", "equal shares", list(stage.samples), message)


def edge_skips(case: Case) -> Findings:
    """Without `skip_edges` tensors flow between neighbouring stages only."""
    if not case.options.skip_edges:
        for a, b in case.reading.tensors:
            if b != a + 1:
                message = f"Stage {a} feeds stage {b}, which is not the next one, as skip_edges = false demands."
                yield Finding(f"stage {a}", f"stage {a + 1}", f"stage {b}", message)


def recompute_forbidden(case: Case) -> Findings:
    """Stages recompute only if `recompute` allows it."""
    for number, stage in enumerate(case.plan.stages):
        if stage.recompute and not case.options.recompute:
            message = f"Stage {number} recomputes its activations, which recompute = false forbids."
            yield Finding(f"stage {number}", "no recomputation", "recomputation", message)


def recompute_uneven(case: Case) -> Findings:
    """Without `recompute_layers` a stage recomputes all of its layers fully, or none."""
    for number, stage in enumerate(case.plan.stages):
        if isinstance(stage.recompute, tuple) and case.options.recompute and not case.options.recompute_layers:
            message = f"Stage {number} says which layers recompute, which recompute_layers = false forbids."
            yield Finding(f"stage {number}", "true or false", dict(stage.recompute), message)


def _recompute_some(case: Case) -> Findings:
    """Without `recompute_microbatches` a stage recomputes every microbatch, or none."""
    for number, stage in enumerate(case.plan.stages):
        if stage.recompute_microbatches and case.options.recompute and not case.options.recompute_microbatches:
            message = f"Stage {number} lists microbatches that recompute, which recompute_microbatches = false forbids."
            yield Finding(f"stage {number}", "all microbatches", list(stage.recompute_microbatches), message)


def shard_option(case: Case) -> Findings:
    """Replicas shard the optimizer's state where `shard_optimizer` allows it, or asks for it."""
    replicated = {number: stage for number, stage in enumerate(case.plan.stages) if len(stage.replicas) > 1}
    sharded = [number for number, stage in replicated.items() if is_sharded(stage)]
    choice = case.options.shard_optimizer
    wanted = {"never": [], "always": [*replicated], "together": [*replicated] if sharded else []}.get(choice, sharded)
    for number in sorted(set(wanted) ^ set(sharded)):
        asked, found = ("sharded", "whole") if number in wanted else ("whole", "sharded")
        message = f"Stage {number} has its optimizer's state {found}, which shard_optimizer = {choice} forbids."
        yield Finding(f"stage {number}", asked, found, message)


def split_forbidden(case: Case) -> Findings:
    """Without `split_backward` a stage that has a W runs B only."""
    if case.options.split_backward:
        return
    orders = case.reading.orders
    splits = numpy.array(case.reading.has_weight_grad, dtype=numpy.bool_)[orders.stage] & (orders.stage >= 0)
    for row in numpy.flatnonzero(splits & numpy.isin(orders.kind, [KINDS.index("I"), KINDS.index("W")])).tolist():
        device, action = orders.device_name(row), orders.action(row)
        message = f"{device} runs {action}, but split_backward = false: the executor has only B."
        yield Finding(f"{device}: {action}", "B", action.kind, message)


def device_idle(case: Case) -> Findings:
    """Without `idle_devices` every device of the cluster works for a stage."""
    if not case.options.idle_devices:
        for device in case.reading.devices:
            if device not in case.replicas_on:
                message = f"Device {device} holds no stage, which idle_devices = false forbids."
                yield Finding(f"device {device}", "a stage", "none", message)


def layer_pinned(case: Case) -> Findings:
    """Every replica of a pinned layer's stage includes the device that the layer is pinned to."""
    for pin in case.options.pinned:
        number = case.reading.stage_of[pin.layer]
        replicas = case.plan.stages[number].replicas
        if not all(pin.device in group for group in replicas):
            message = f"Layer {pin.layer!r} is pinned to {pin.device}, but its stage {number} is elsewhere."
            yield Finding(f"layer {pin.layer}", pin.device, list(map(list, replicas)), message)


def partition_given(case: Case) -> Findings:
    """The stages are those of `partition`, if it is given."""
    given = case.options.partition
    if given is not None:
        actual = [sorted(stage.layers) for stage in case.plan.stages]
        if actual != (expected := [sorted(names) for names in given]):
            message = "The stages are not those that the option `partition` gives."
            yield Finding("the stages", expected, actual, message)


def placement_given(case: Case) -> Findings:
    """The device groups are those of `placement`, if it is given."""
    given = case.options.placement
    if given is not None:
        actual = tuple(stage.replicas for stage in case.plan.stages)
        if actual != given:
            message = "The device groups are not those that the option `placement` gives."
            yield Finding("the stages", given, actual, message)


RULES: Rules = {
    width_limit: "Form smaller groups, or raise `max_width`.",
    stages_per_device: "Move a stage, or raise `max_stages_per_device`.",
    replica_limit: "Remove replicas, or raise `max_replicas`.",
    replicas_uneven: "Use one number of replicas, or allow `uneven_replication`.",
    unequal_forbidden: "Remove `samples`, or allow `unequal_shares`.",
    edge_skips: "Move a layer, or allow `skip_edges`.",
    recompute_forbidden: "Remove `recompute` of the stage, or allow it.",
    recompute_uneven: "Recompute all layers of the stage or none, or allow `recompute_layers`.",
    _recompute_some: "Remove the list, or allow `recompute_microbatches`.",
    shard_option: "Change `shard` of the stage, or the option `shard_optimizer`.",
    split_forbidden: "Run B, or allow `split_backward`.",
    split_placement_forbidden: "Name no other devices, or allow `split_placement`.",
    device_idle: "Put a stage on the device, or allow `idle_devices`.",
    layer_pinned: "Put the stage on that device, or change the pin.",
    partition_given: "Use these stages, or change `partition`.",
    placement_given: "Use these groups, or change `placement`.",
}
