"""Proofs that no plan fits into memory."""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction

from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.bounds.schedule import overfull
from planner.bounds.stage_replicas import make_lanes
from planner.plan import Stage


def prove_infeasible(least: Least) -> str | None:
    """A sentence that names the limit that rules out every plan, or None if none was found."""
    return _largest_layer(least) or _everything(least) or _too_many_stages(least)


def prove_overfull(least: Least, stages: Sequence[Stage]) -> str | None:
    """The same where stages and devices are given, none recomputes and none shards: one device at a time.

    What a stage leaves of a microbatch for its backward is its stash then.
    """
    problem = least.problem
    lanes = make_lanes(problem, tuple(stages), costs=least.costs)
    found = overfull(lanes)
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

    I holds the whole stash of its microbatch even where the stage recomputes. Replicas that shard hold an equal part of
    the optimizer's state at least.
    """
    layer = least.layers[number]
    return min(
        entry.state_bytes
        - ((own := Fraction(layer.shardable_bytes_at(width))) - own / least.sharers)
        + entry.workspace_bytes
        + Fraction(entry.stash_bytes, least.problem.max_replicas)
        for width, entry in least.entries(number)
    )


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
    state = sum(least.least_bytes("state_bytes"))
    stash = _most_stashed(least)
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


def _most_stashed(least: Least) -> int:
    """Bytes held when a last layer runs: the stash of all layers that wait for a gradient from it."""
    held = least.held_bytes
    behind = [0] * len(least.layers)
    is_sink = [True] * len(least.layers)
    for number, edges in enumerate(_gradient_producers(least)):
        behind[number] = 1 << number
        for producer in edges:
            behind[number] |= behind[producer]
            is_sink[producer] = False
    return max(
        sum(size for layer, size in enumerate(held) if behind[number] >> layer & 1)
        for number in range(len(held))
        if is_sink[number]
    )


def _gradient_producers(least: Least) -> list[list[int]]:
    """Per layer: the layers it sends a gradient."""
    producers: list[list[int]] = [[] for _ in least.layers]
    for edge in least.problem.profile.edges:
        if edge.has_gradient:
            producers[least.index[edge.consumer]].append(least.index[edge.producer])
    return producers
