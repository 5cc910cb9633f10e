"""Baselines again with recomputation: the same stages and the same method, where the plan breaks the memory without."""

from collections.abc import Sequence
from dataclasses import replace

from planner.actions import Action
from planner.layout.costs import CostModel, StageCost
from planner.layout.stage_replicas import lay_out_stages, memory_steps
from planner.plan import Plan, Stage


def with_recomputation(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same stages, all of which recompute."""
    return tuple(replace(stage, recompute=True) for stage in stages)


def breaks_memory(costs: CostModel, plan: Plan) -> bool:
    """Whether a device's order needs more memory than it has; orders alone decide that (contract, "Memory")."""
    laid_out, devices = lay_out_stages(plan.stages, costs=costs), costs.problem.cluster.by_name
    cost_of = {place: each.cost for place, each in laid_out.by_place.items()}
    for device, device_order in plan.schedule.items():
        held = {action.stage: cost_of[device, action.stage] for action in device_order}
        if laid_out.static_bytes[device] + _peak(device_order, held) > devices[device].usable_bytes:
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
