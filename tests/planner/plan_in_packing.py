"""A plan that exists survives every rule of the packing bound: its stages, and what its devices hold.

A plan is followed, with its own makespan as the deadline, through rounds of prices and splits. The first step that
leaves out one of its stages, or of its devices' loads, is named.
"""

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.packing_bound import Packing, Split
from planner.bounds.device_packing.price_search import Refutation
from planner.bounds.device_packing.stage_assignments import DeviceAssignments
from planner.bounds.minimum_costs import Least
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from solver_models.covering import Covering


class LostError(AssertionError):
    """A rule denies a plan that exists."""


def follow(problem: Problem, plan: Plan, *, value: int, depth: int) -> int:
    """Follow the plan through so many splits at most; the splits that it passed. Raises LostError if it is left out."""
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    deadline = value - boundaries.least.optimizer_ns
    keys = [boundaries.least.layers[boundaries.trunk.path[key]].name for key in boundaries.keys]
    held = [[keys.index(name) for name in keys if name in stage.layers] for stage in plan.stages]
    packing = Packing(boundaries, deadline)
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
    """The plan is among the seatings of the open stages, and the schedule bound does not deny it."""
    seatings, rows = DeviceAssignments(packing.stages, packing.loads), rows_of(packing)
    free = dict(enumerate(seatings.kinds))
    names, seating = dict[str, int](), list[tuple[int, tuple[int, ...]]]()
    for stage, keys in sorted(zip(plan.stages, held, strict=True), key=lambda pair: pair[1]):
        if not keys:
            continue
        for (device,) in stage.replicas:
            if device not in names:
                kind = kind_of(problem, packing, device)
                names[device] = next(number for number, other in free.items() if other == kind)
                del free[names[device]]
        devices = tuple(names[device] for (device,) in stage.replicas)
        seating.append((rows[keys[0], keys[-1] + 1, len(devices)], devices))
    if packing.is_late(tuple(seating)):
        raise LostError(f"the schedule bound denies {seating}")
    found = seatings.find(most=10**6)
    if found is not None and tuple(seating) not in found:
        raise LostError(f"{seating} is none of the seatings")


def kind_of(problem: Problem, packing: Packing, name: str) -> int:
    """The kind of a device."""
    device = problem.cluster.by_name[name]
    alike = (device.type, device.usable_bytes)
    (found,) = (number for number, kind in enumerate(packing.boundaries.kinds) if alike in kind.members)
    return found


def is_first(split: Split, plan: Plan, *, held: list[list[int]]) -> bool:
    """Whether the plan is of the first case."""
    if split.replicas:
        return any(
            split.place in keys and len(stage.replicas) <= split.replicas
            for stage, keys in zip(plan.stages, held, strict=True)
        )
    return any(keys and keys[0] == split.place for keys in held)


def rows_of(packing: Packing) -> dict[tuple[int, int, int], int]:
    """The row of every stage, by start, end and replicas."""
    stages = packing.stages
    keys = zip(stages.start.tolist(), stages.end.tolist(), stages.replicas.tolist(), strict=True)
    return {key: row for row, key in enumerate(keys)}


def require(problem: Problem, packing: Packing, plan: Plan, *, held: list[list[int]], where: str) -> None:
    """Every stage of the plan is open, and every device holds one of the loads."""
    stages, loads, rows = packing.stages, packing.loads, rows_of(packing)
    on: dict[str, list[int]] = {}
    for stage, keys in zip(plan.stages, held, strict=True):
        if not keys:
            continue
        row = rows.get((keys[0], keys[-1] + 1, len(stage.replicas)))
        if row is None or not stages.is_open[row]:
            raise LostError(f"{where}: the stage of keys {keys} on {len(stage.replicas)} replicas is closed")
        for (device,) in stage.replicas:
            on.setdefault(device, []).append(row)
    known = set(zip(loads.kind.tolist(), loads.first.tolist(), loads.second.tolist(), strict=True))
    for device, own in on.items():
        own.sort(key=lambda row: int(stages.start[row]))
        if (kind_of(problem, packing, device), own[0], own[1] if len(own) > 1 else -1) not in known:
            raise LostError(f"{where}: what {device} holds is not a load: {own}")
