"""A plan that exists survives every rule of the packing bound: its stages, and what its devices hold.

A plan is followed, with its own makespan as the deadline, through rounds of prices and splits. The first step that
leaves out one of its stages, or of its devices' loads, is named.
"""

from collections.abc import Iterable

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.packing_bound import Packing, Split
from planner.bounds.device_packing.price_search import Refutation
from planner.bounds.device_packing.stage_assignments import DeviceAssignment, DeviceAssignments
from planner.bounds.minimum_costs import Least
from planner.layout.costs import CostModel, checkpoint_bytes
from planner.plan import Plan, Stage
from planner.problem import Problem
from solver_models.covering import Covering


class LostError(AssertionError):
    """A rule denies a plan that exists."""


def follow(problem: Problem, plan: Plan, *, value: int, depth: int, levels: int = 1) -> int:
    """Follow the plan through so many splits at most; the splits that it passed. Raises LostError if it is left out."""
    boundaries = Boundaries(Least(problem, CostModel(problem)), levels=levels)
    deadline = value - boundaries.least.optimizer_ns
    packing = Packing(boundaries, deadline)
    held = keys_of(packing, plan.stages)
    refutation = Refutation(boundaries, Covering, most=1, effort=10**9)
    for passed in range(depth):
        require(problem, packing, plan, held=held, where=f"begin of split {passed}")
        _, split = refutation._price(packing)
        require(problem, packing, plan, held=held, where=f"prices {passed}")
        if split is None:
            require_seating(problem, packing, plan, held=held)
            return passed
        packing = packing.part(split, first=is_first(split, plan, held=held))
    require(problem, packing, plan, held=held, where="end")
    require_seating(problem, packing, plan, held=held)
    return depth


def require_seating(problem: Problem, packing: Packing, plan: Plan, *, held: list[list[int]]) -> None:
    """The plan is among the seatings of the open stages, and neither the schedule bound nor a tree denies it."""
    if max(len(group) for stage in plan.stages for group in stage.replicas) > 1:
        return
    seatings, seating = DeviceAssignments(packing.stages, packing.loads), seat(problem, packing, plan.stages, held=held)
    if packing.is_late(seating):
        raise LostError(f"the schedule bound denies {seating}")
    if packing.find_tree(seating) is not None:
        raise LostError(f"a tree denies every order of {seating}")
    found = seatings.find(most=10**6)
    if found is not None and seating not in found:
        raise LostError(f"{seating} is none of the seatings")


def keys_of(packing: Packing, stages: Iterable[Stage]) -> list[list[int]]:
    """Per stage the numbers of its keys."""
    boundaries = packing.boundaries
    keys = [boundaries.least.layers[boundaries.trunk.path[key]].name for key in boundaries.keys]
    return [[keys.index(name) for name in keys if name in stage.layers] for stage in stages]


def seat(problem: Problem, packing: Packing, stages: Iterable[Stage], *, held: list[list[int]]) -> DeviceAssignment:
    """The stages on devices that are numbered kind by kind, those of each in the order in which they come."""
    rows, free = rows_of(packing), dict(enumerate(DeviceAssignments(packing.stages, packing.loads).kinds))
    names, seating = dict[str, int](), list[tuple[int, tuple[int, ...]]]()
    for stage, keys in sorted(zip(stages, held, strict=True), key=lambda pair: pair[1]):
        if not keys:
            continue
        for (device,) in stage.replicas:
            if device not in names:
                kind = kind_of(problem, packing, device)
                names[device] = next(number for number, other in free.items() if other == kind)
                del free[names[device]]
        devices = tuple(names[device] for (device,) in stage.replicas)
        seating.append((rows[keys[0], keys[-1] + 1, len(devices), form_of(packing, stage)], devices))
    return tuple(seating)


def kind_of(problem: Problem, packing: Packing, name: str) -> int:
    """The kind of a device."""
    device = problem.cluster.by_name[name]
    alike = (device.type, device.usable_bytes)
    (found,) = (number for number, kind in enumerate(packing.boundaries.kinds) if alike in kind.members)
    return found


def is_first(split: Split, plan: Plan, *, held: list[list[int]]) -> bool:
    """Whether the plan is of the first case."""
    if split.devices:
        return any(
            split.place in keys and len(stage.replicas) * len(stage.replicas[0]) <= split.devices
            for stage, keys in zip(plan.stages, held, strict=True)
        )
    return any(keys and keys[0] == split.place for keys in held)


def rows_of(packing: Packing) -> dict[tuple[int, int, int, int], int]:
    """The row of every stage, by start, end, replicas and form."""
    stages = packing.stages
    columns = (stages.start, stages.end, stages.replicas, stages.form)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    return {key: row for row, key in enumerate(keys)}


def form_of(packing: Packing, stage: Stage) -> int:
    """The form of a stage: its width, and whether it recomputes, or how many bytes its keys leave on average."""
    boundaries, width = packing.boundaries, len(stage.replicas[0])
    forms, least, levels = boundaries.forms, boundaries.least, boundaries.levels
    whole = left = 0
    for layer in (least.layers[number] for number in forms.layers):
        if layer.name in stage.layers:
            size, count = layer.bytes_at(width), boundaries.count
            again = len(stage.recompute_microbatches) or count
            kind = stage.recomputed.get(layer.name)
            assert size is not None
            whole += count * size.stash_bytes
            left += again * checkpoint_bytes(size, kind) + (count - again) * size.stash_bytes
    level = min(left * levels // max(whole, 1), levels - 1)
    (found,) = (
        number
        for number, (own, kind) in enumerate(forms.kinds)
        if own == width and forms.level[number] == level and kind in (None, bool(stage.recompute))
    )
    return found


def require(problem: Problem, packing: Packing, plan: Plan, *, held: list[list[int]], where: str) -> None:
    """Every stage of the plan is open, and every device holds one of the loads."""
    stages, loads, rows = packing.stages, packing.loads, rows_of(packing)
    on: dict[str, list[int]] = {}
    for stage, keys in zip(plan.stages, held, strict=True):
        if not keys:
            continue
        row = rows.get((keys[0], keys[-1] + 1, len(stage.replicas), form_of(packing, stage)))
        if row is None or not stages.is_open[row]:
            raise LostError(f"{where}: the stage of keys {keys} on {len(stage.replicas)} replicas is closed")
        for device in (device for group in stage.replicas for device in group):
            on.setdefault(device, []).append(row)
    known = set(zip(loads.kind.tolist(), loads.first.tolist(), loads.second.tolist(), strict=True))
    for device, own in on.items():
        own.sort(key=lambda row: int(stages.start[row]))
        if (kind_of(problem, packing, device), own[0], own[1] if len(own) > 1 else -1) not in known:
            raise LostError(f"{where}: what {device} holds is not a load: {own}")
