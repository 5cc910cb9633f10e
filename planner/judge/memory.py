"""What every device holds (section 4): it depends on the order of its actions alone.

    F takes the stash | I gives back stash - weight stash | W gives back the weight stash | B gives back all at its end

Of a layer that recomputes a stage holds the checkpoint instead, and the rest only while its I or B runs (and until W).
Where a stage lists the microbatches that recompute, the others hold their stash throughout. With `recompute_in_turn` B
recomputes one layer after the other: beside the checkpoints there is the rest of one layer.
With `keep_workspace`, I gives back its workspace not at its end but at the end of its W, which has no other.
"""

from typing import NamedTuple

import numpy

from planner.actions import Action
from planner.judge.device_orders import DeviceOrders, Integers
from planner.judge.samples import round_up
from planner.judge.sizes import StageBytes
from planner.judge.stage_replicas import StageReplica, is_split
from planner.plan import Stage
from planner.problem import Options
from profiles.cluster import Device

MOST_BYTES = 2**61
"""Sums that could come this far are not made of 64-bit integers."""


def usable_bytes(device: Device) -> int:
    """What a plan may fill: a device's memory without what it keeps for itself."""
    return device.memory_bytes - (device.reserved_bytes or 0)


class MemoryUse(NamedTuple):
    """What one device holds at most."""

    peak_bytes: int
    """Largest sum of static bytes, stashes and workspace over time."""
    first_over: Action | None
    """The first action during which it holds more than its memory; None if it never does or already idle holds it."""


class Step(NamedTuple):
    """What an action adds to what is held."""

    during: int
    """While it runs."""
    after: int
    """From its end on; negative if it gives back."""


Steps = tuple[Step, Step, Step, Step]
"""Those of F, I, W and B."""


def steps(replica: StageReplica, stage: Stage, *, size: StageBytes, options: Options, has_weight_grad: bool) -> Steps:
    """What F, I, W and B of a stage replica add. With `keep_workspace` its W, if it has one, runs in the workspace of
    its I; with `recompute_in_turn` its B recomputes one layer after the other.

    A replica holds its own share of what grows with the batch; a workspace is what its layers state.
    """
    if is_split(stage):
        return _split_steps(replica, size=size)
    share = replica.samples.share
    held, stash, weight_stash = (round_up(share * each) for each in (size.held, size.stash, size.weight_stash))
    kept = size.workspace if options.keep_workspace and has_weight_grad else 0
    rest = stash - held
    rebuilt = min(rest, round_up(share * size.rebuilt)) if options.recompute_in_turn else rest
    return (
        Step(held + size.workspace, held),
        Step(rest + size.workspace, kept + weight_stash - held),
        Step(size.workspace - kept, -kept - weight_stash),
        Step(rebuilt + size.workspace, -held),
    )


def _split_steps(replica: StageReplica, *, size: StageBytes) -> Steps:
    """Split placement: the owner keeps the stash until its own next action of the microbatch has ended.

    Others hold what they were sent while they run I or W. Who runs both keeps its part of the weight stash from one to
    the other.
    """
    share, kinds = replica.samples.share, replica.kinds
    is_owner = "F" in kinds
    own_weight_stash = round_up(share * size.weight_stash) if "W" in kinds else 0
    held = size.stash if is_owner and kinds != "F" else 0
    needed = 0 if is_owner else round_up(share * size.stash)
    kept = own_weight_stash if "I" in kinds else held
    return (
        Step(size.stash + size.workspace, held),
        Step(needed + size.workspace, kept - held),
        Step(round_up((1 - share) * size.weight_stash) + size.workspace, -kept),
        Step(0, 0),
    )


def memory_uses(
    orders: DeviceOrders, runner: Integers, *, added: list[list[Steps]], variant: Integers,
    static: dict[str, int], limits: dict[str, int], moved: Integers,
) -> dict[str, MemoryUse]:  # fmt: skip
    """The use of every device; `runner` [A] is the stage replica of each action, `variant` [A] its column of
    `added` [stage replicas][variants], which is what their actions add; `moved` [A] what comes right before it.
    """
    most = max((abs(value) for sizes in added for each in sizes for step in each for value in step), default=0)
    most += int(numpy.abs(moved).max(initial=0))
    exact = numpy.int64 if most * (len(runner) + 1) < MOST_BYTES else object
    table = numpy.array(added, dtype=exact).reshape(len(added), -1, 4, 2)[runner, variant, orders.kind]
    during, after = table[:, 0] + moved, table[:, 1] + moved
    total = numpy.concatenate([numpy.zeros(1, dtype=exact), numpy.cumsum(after)])
    begin = total[orders.first[:-1]]
    held = numpy.maximum(total[:-1] + during, total[1:])
    uses = {}
    for number, device in enumerate(orders.devices):
        part = slice(int(orders.first[number]), int(orders.first[number + 1]))
        above = held[part] - begin[number]
        base, limit = static[device], limits[device]
        peak = base + max(0, int(above.max())) if len(above) else base
        over = numpy.flatnonzero(above > limit - base)
        is_named = base <= limit and len(over) > 0
        uses[device] = MemoryUse(peak, orders.schedule[device][int(over[0])] if is_named else None)
    return uses
