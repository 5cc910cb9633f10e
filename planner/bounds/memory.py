"""Proofs that no plan fits into memory, or can have what is pinned or be on all devices."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

from planner.bounds.first_backward import FirstBackward
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.bounds.order.schedule_bound import overfull
from planner.bounds.order.stage_replicas import make_replicas
from planner.plan import Stage


def prove_infeasible(least: Least) -> str | None:
    """A sentence that names the limit that rules out every plan, or None if none was found."""
    return (
        _largest_layer(least)
        or _everything(least)
        or _too_many_stages(least)
        or _pinned_together(least)
        or _pinned_separate(least)
        or _idle_devices(least)
    )


def prove_overfull(least: Least, stages: Sequence[Stage]) -> str | None:
    """The same where stages and devices are given, none recomputes and none shards: one device at a time.

    What a stage leaves of a microbatch for its backward is its stash then.
    """
    problem = least.problem
    replicas = make_replicas(problem, tuple(stages), costs=least.costs)
    found = overfull(replicas)
    if found is None:
        return None
    number, device, excess = found
    has = problem.cluster.by_name[device].usable_bytes
    stage = [number for number, stage in enumerate(stages) for _ in stage.replicas][number]
    return (
        f"device {device!r} needs {has + excess:,} bytes when stage {stage} has one microbatch (the states and receive "
        "buffers of all its stages, workspace, and the stash of that microbatch in the stage and in those that wait "
        f"for its gradient), but it has {has:,}; change partition or placement, or use a larger device, smaller "
        "microbatches or recomputation"
    )


def _footprint(least: Least, number: int) -> Fraction:
    """Least bytes of a device that runs the layer: state, one microbatch's stash over the most replicas, and workspace.

    I holds the whole stash of its microbatch even where the stage recomputes.
    """
    most = least.problem.max_replicas
    return min(
        _state(least, number, width=width) + entry.workspace_bytes + Fraction(entry.stash_bytes, most)
        for width, entry in least.entries(number)
    )


def _state(least: Least, number: int, *, width: int) -> Fraction:
    """Least bytes of state: replicas that shard hold an equal part of the optimizer's at least."""
    own = least.residents(number)[width]
    return own.state - own.shardable + Fraction(own.shardable, least.sharers)


def _largest_layer(least: Least) -> str | None:
    largest = max(device.usable_bytes for device in least.problem.cluster.devices)
    number = max(range(len(least.layers)), key=lambda number: _footprint(least, number))
    layer, need = least.layers[number], _footprint(least, number)
    if need <= largest:
        return None
    whole = -(-need.numerator // need.denominator)
    return (
        f"layer {layer.name!r} alone needs {whole:,} bytes on a device (state, workspace and the stash of one "
        f"microbatch over at most {least.problem.max_replicas} replicas), but the largest device has {largest:,}; "
        "use a larger device, smaller microbatches or more replicas, or split the layer"
    )


def _everything(least: Least) -> str | None:
    """Every layer's state is somewhere, and when a sink runs, one microbatch is stashed in every layer behind it.

    With a width w each of the w devices holds its own bytes, so the least per device is the least in all. Replicas that
    shard the optimizer's state hold all of it together.
    """
    total = sum(device.usable_bytes for device in least.problem.cluster.devices)
    first_backward = FirstBackward(least)
    state = sum(first_backward.states)
    stash = sum(first_backward.held(number, least.held_bytes[number]) for number in first_backward.waiting)
    if state + stash <= total:
        return None
    return (
        f"the layers need at least {state:,} bytes of state and {stash:,} of stash for one microbatch, but all devices "
        f"together have {total:,}; use more or larger devices, smaller microbatches or recomputation"
    )


def _too_many_stages(least: Least) -> str | None:
    """However the trunk is cut, every stage fits into a device: cutting as late as possible gives the fewest stages.

    A stage on r <= R replicas holds its state on every device, 1 / R of the optimizer's at least where they may shard,
    and 1 / r of a microbatch's stash.
    """
    trunk, most = Trunk(least), least.problem.max_replicas
    largest = max(device.usable_bytes for device in least.problem.cluster.devices)
    need = [int(state) * most + int(stash) for state, stash in zip(trunk.state, trunk.stash, strict=True)]
    stages, boundary = 0, 0
    while boundary < trunk.num_layers:
        boundary = bisect_right(need, need[boundary] + largest * most) - 1
        stages += 1
    chunks = least.problem.options.max_stages_per_device
    if stages <= least.num_devices * chunks:
        return None
    return (
        f"cut into stages that fit the largest device ({largest:,} bytes), the layers need at least {stages} stages, "
        f"but {least.num_devices} devices hold at most {chunks} each; "
        "use larger or more devices, or allow more stages per device"
    )


def _pinned_together(least: Least) -> str | None:
    """A device holds the state of all layers that are pinned to it, and one of them with its workspace and stash."""
    cluster, pinned = least.problem.cluster, dict[str, list[int]]()
    for pin in least.problem.options.pinned:
        pinned.setdefault(pin.device, []).append(least.index[pin.layer])
    for device, layers in pinned.items():
        states = {n: min(_state(least, n, width=width) for width, _ in least.entries(n)) for n in layers}
        exact = sum(states.values()) + max(_footprint(least, number) - states[number] for number in layers)
        need, has = -(-exact.numerator // exact.denominator), cluster.by_name[device].usable_bytes
        if need > has:
            names = ", ".join(repr(least.layers[number].name) for number in layers[:4])
            return (
                f"device {device!r} needs at least {need:,} bytes for the {len(layers)} layers that are pinned to it "
                f"({names}{', ...' if len(layers) > 4 else ''}), but it has {has:,}; pin fewer of them, or use a "
                "larger device"
            )
    return None


def _pinned_separate(least: Least) -> str | None:
    """A stage on one device ends where the next pinned layer of a chain is on another one."""
    problem = least.problem
    if problem.max_replicas > 1 or least.widths != (1,) or not problem.profile.is_chain:
        return None
    device_of = {least.index[pin.layer]: pin.device for pin in problem.options.pinned}
    stages = Counter(device for device, _ in groupby(device_of[number] for number in sorted(device_of)))
    device, count = max(stages.items(), key=lambda item: item[1], default=("", 0))
    most = problem.options.max_stages_per_device
    if count <= most:
        return None
    return (
        f"the layers pinned to device {device!r} are in {count} stages at least, for others between them are pinned "
        f"elsewhere, but a device holds at most {most}; change the pins, or allow more stages per device"
    )


def _idle_devices(least: Least) -> str | None:
    """Where no device may stay idle, the layers have to be on all of them, each in one stage."""
    problem = least.problem
    most = len(least.layers) * problem.max_replicas * max(least.widths)
    if problem.options.idle_devices or most >= least.num_devices:
        return None
    return (
        f"every device has to hold a stage (idle_devices = false), but {len(least.layers)} layers on at most "
        f"{problem.max_replicas} replicas (microbatch_size = {problem.profile.microbatch_size}, cut into whole "
        f"samples) are on {most} of {least.num_devices} devices at most; use fewer devices, or allow idle ones"
    )
