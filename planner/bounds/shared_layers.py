"""Layers that exist only on all devices at once: their time, and the bound of everything else."""

from dataclasses import replace

from planner.bounds.minimum_costs import Least
from planner.problem import Options, Problem
from profiles.model_profile import Layer, ModelProfile, WidthBytes
from profiles.strip_layers import without_layers


def shared_layers(problem: Problem) -> tuple[str, ...]:
    """The layers whose every stage is on all devices; none where the proof does not hold, or no others are left."""
    types, count = problem.cluster.device_types, len(problem.cluster.devices)
    options = problem.options
    if len(types) > 1 or count == 1 or options.objective != "makespan" or problem.may_shard:
        return ()
    found = tuple(layer.name for layer in problem.profile.layers if problem.widths_of(layer, types[0]) == (count,))
    if problem.max_replicas > 1 and not all(map(_holds_its_weights, problem.profile.layers)):
        return ()
    return found if len(found) < len(problem.profile.layers) else ()


def busy_ns(least: Least) -> int:
    """Nanoseconds in which all devices work on these layers, in any plan.

    Proof of makespan >= this + the makespan of some plan of `remaining_problem`. Cut all that time out of a played
    plan, from the actions of the stages that hold these layers: F of each layer for each microbatch, and B, which is at
    most I + W. These actions keep all devices busy, so the rest moves together: no action overlaps another one, comes
    before what it waits for, or changes its place in a device's order, on which memory depends. What transfers and
    synchronisation lose is not counted: they take no time there. The layers that are left are on the same devices, for
    the same times, and wait for each other as before (`without_layers`). So what is left is a timetable of a plan of
    the remaining problem, which played ends no later; and what follows the last action is no shorter with these layers.
    """
    names = shared_layers(least.problem)
    works = zip(least.layers, least.time.total, strict=True)
    return least.problem.num_microbatches * sum(int(work) for layer, work in works if layer.name in names)


def remaining_problem(problem: Problem) -> Problem:
    """The question without these layers, without messages, and with the stages that are left on every device."""
    names = shared_layers(problem)
    profile, options, cluster = without_layers(problem.profile, names), problem.options, problem.cluster
    free = [replace(link, latency_ns=0, message_overhead_ns=None) for link in cluster.links]
    links = tuple(link.with_step_times(dict.fromkeys(link.step_times, ())) for link in free)
    devices = [replace(device, memory_bytes=device.usable_bytes, reserved_bytes=0) for device in cluster.devices]
    is_alone = all(len(devices) not in problem.widths_of(layer, devices[0].type) for layer in profile.layers)
    chunks = options.max_stages_per_device - (_least_stages(problem.profile, names) if is_alone else 0)
    return Problem(
        profile=replace(
            profile,
            layers=tuple(map(Layer.unsynchronised, profile.layers)) if problem.max_replicas > 1 else profile.layers,
            edges=tuple(
                replace(edge, bytes=0, gradient_bytes=None if edge.has_gradient else 0) for edge in profile.edges
            ),
            bucket_bytes=0,
            reduction_bytes=0,
        ),
        cluster=replace(cluster, devices=tuple(devices), links=links, overlap=True),
        num_microbatches=problem.num_microbatches,
        options=_remaining_options(options, names, chunks=max(1, chunks)),
    )


def _remaining_options(options: Options, names: tuple[str, ...], *, chunks: int) -> Options:
    """What was decided about other layers stays decided."""
    pinned = tuple(pin for pin in options.pinned if pin.layer not in names)
    free = replace(
        options,
        max_stages_per_device=chunks,
        uneven_replication=True,
        skip_edges=True,
        idle_devices=True,
        order="any",
        pinned=pinned,
        partition=None,
        placement=None,
    )
    if options.partition is None:
        return free
    left = [tuple(name for name in layers if name not in names) for layers in options.partition]
    partition = tuple(layers for layers in left if layers)
    if options.placement is None:
        return replace(free, partition=partition)
    placement = tuple(groups for layers, groups in zip(left, options.placement, strict=True) if layers)
    return replace(free, partition=partition, placement=placement)


def _least_stages(profile: ModelProfile, names: tuple[str, ...]) -> int:
    """Stages that hold these layers at the least: two with another layer between them are never in one."""
    count: dict[str, int] = {}
    for name in profile.topological_order:
        before = [edge.producer for edge in profile.edges if edge.consumer == name]
        count[name] = max((count[each] + (name in names and each not in names) for each in before), default=0)
        count[name] = max(count[name], int(name in names))
    return max(count.values())


def _holds_its_weights(layer: Layer) -> bool:
    """Whether weights, and the optimizer's state, are parts of what is resident, as where gradients are stated."""
    entries: tuple[Layer | WidthBytes, ...] = (layer, *layer.wider)
    return all((e.parameter_bytes or 0) + (e.optimizer_bytes or 0) <= e.state_bytes for e in entries)
