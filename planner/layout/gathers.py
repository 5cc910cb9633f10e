"""When devices gather the weights of stages that they hold in parts (contract, "Gathered stages").

Before every action the stages that its device runs next are active, `most` of them. What is not among them any more
gives its weights back, what is among them and not there is gathered. The same positions make torch's UNSHARD and
RESHARD (`torch.distributed.pipelining`, `max_active_stages`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.errors import PlanError
from planner.plan import Plan


class WeightChange(NamedTuple):
    """What a device does about the weights of its stages before an action."""

    position: int
    """Place of the action in the device's order; after the last: as many as there are."""
    freed: tuple[int, ...]
    """Stages whose weights it gives back, ascending."""
    gathered: tuple[int, ...]
    """Stages whose weights are asked for then, in the order of their next actions."""


class Rank(NamedTuple):
    """Devices that hold the same stages in parts, and run them in one order."""

    devices: tuple[str, ...]
    stages: tuple[int, ...]
    """Their numbers, ascending."""


class Gather(NamedTuple):
    """One gathering of the weights of a stage by its devices."""

    stage: int
    position: int
    """Place in their orders of the action before which it is asked for."""


class TimedGather(NamedTuple):
    """One gathering of the weights of a stage by its replicas; `position`: place of the action before which it is asked
    for, in the orders of their devices.
    """

    stage: int
    position: int
    start_ns: int
    end_ns: int


def weight_changes(stages: Sequence[int], *, most: int) -> Iterator[WeightChange]:
    """All changes of a device that runs actions of these stages, one after the other, with `most` active at a time."""
    windows = _windows(stages, most=most)
    active = set[int]()
    for position in sorted(windows):
        window = windows[position]
        freed, gathered = sorted(active.difference(window)), [stage for stage in window if stage not in active]
        active = set(window)
        if freed or gathered:
            yield WeightChange(position, tuple(freed), tuple(gathered))


def _windows(stages: Sequence[int], *, most: int) -> dict[int, tuple[int, ...]]:
    """The active stages from a position on, next one first, wherever the stage changes; none after the last."""
    found: dict[int, tuple[int, ...]] = {len(stages): ()}
    coming = list[int]()
    for position in range(len(stages) - 1, -1, -1):
        stage = stages[position]
        if stage in coming[:1]:
            found.pop(position + 1)  # it continues
        else:
            coming = [stage, *(each for each in coming if each != stage)]
        found[position] = tuple(coming[:most])
    return found


def gathers(stages: Sequence[int], *, most: int) -> tuple[list[Gather], list[int]]:
    """The gatherings in the order in which they are asked for; and per action how many of them it waits for."""
    changes = list(weight_changes(stages, most=most))
    asked = [Gather(stage, change.position) for change in changes for stage in change.gathered]
    needed, latest, number = list[int](), dict[int, int](), 0
    for position, stage in enumerate(stages):
        while number < len(asked) and asked[number].position <= position:
            latest[asked[number].stage] = number + 1
            number += 1
        needed.append(latest[stage])
    return asked, needed


def gathering_ranks(plan: Plan) -> tuple[Rank, ...]:
    """The ranks whose stages are gathered; PlanError if the plan gathers stages otherwise than ranks can."""
    gathered = {number for number, stage in enumerate(plan.stages) if stage.is_gathered}
    if bool(gathered) != (plan.max_active_stages is not None):
        raise PlanError("max_active_stages and stages with shard = 'weights' go together")
    held, found = plan.stages_held() if gathered else {}, dict[tuple[str, ...], Rank]()
    for number in sorted(gathered):
        stage = plan.stages[number]
        devices = tuple(sorted(device for group in stage.replicas for device in group))
        stages, orders = {tuple(held[device]) for device in devices}, {plan.schedule.get(each) for each in devices}
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (stage.is_split or stage.samples)
        if len(stages) > 1 or len(orders) > 1 or not is_narrow or not gathered.issuperset(*stages) or plan.dealing:
            raise PlanError(f"the devices of stage {number} do not gather the same stages in the same order")
        found[devices] = Rank(devices, tuple(held[devices[0]]))
    return tuple(found.values())


def most_gathered(sizes: Sequence[int], *, most: int) -> int:
    """The largest sum of so many sizes: what the gathered weights of a device take at most."""
    return sum(sorted(sizes, reverse=True)[:most])
