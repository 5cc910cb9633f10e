"""Baselines again with recomputation: the same stages and the same method, where the plan breaks the memory without."""

from collections.abc import Sequence
from dataclasses import replace

from planner.actions import Action
from planner.layout.costs import CostModel, StageCost
from planner.layout.stage_replicas import memory_steps
from planner.plan import Plan, Stage


def with_recomputation(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same stages, all of which recompute."""
    return tuple(replace(stage, recompute=True) for stage in stages)


def breaks_memory(costs: CostModel, plan: Plan) -> bool:
    """Whether a device's order needs more memory than it has; orders alone decide that (contract, "Memory")."""
    static = costs.static_bytes(plan.stages)
    replica_of = {
        (device, number): replica
        for number, stage in enumerate(plan.stages)
        for replica, group in enumerate(stage.replicas)
        for device in group
    }
    for device, device_order in plan.schedule.items():
        held = {
            number: costs.stage_cost(plan.stages[number], replica_of[device, number])
            for number in {action.stage for action in device_order}
        }
        if static[device] + _peak(device_order, held) > costs.problem.cluster.by_name[device].usable_bytes:
            return True
    return False


def _peak(device_order: Sequence[Action], costs: dict[int, StageCost]) -> int:
    """Most bytes beside what is resident, over a device's actions in order."""
    peak = now = 0
    for kind, stage, _ in device_order:
        during, after = memory_steps(costs[stage], kind)
        peak = max(peak, now + during)
        now += after
    return peak
