"""The same instance in coarser ticks and units: exact where a common divisor suffices, else relaxed."""

from dataclasses import dataclass, replace
from math import gcd

from solver_models.instance import Lane, ScheduleInstance

SAFE_TICKS = 1 << 50
"""Longest horizon given to the solver."""

SAFE_AREA = 1 << 60
"""Largest horizon x budget given to the solver."""

_TIMES = ("forward", "input_grad", "weight_grad", "backward")
_SIZES = ("held", "stash", "weight_stash", "workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """An instance in coarser numbers, and how to read results in them."""

    instance: ScheduleInstance
    """Every duration and demand rounded down: whatever fits in the original fits here, and ends no later."""
    ticks: int
    """Original ticks in one tick of `instance`."""
    is_exact: bool
    """Whether no duration and no demand was rounded, so that its schedules and theirs correspond one to one."""


def horizon_of(instance: ScheduleInstance) -> int:
    """Ticks that suffice for any schedule without idle time everywhere: all actions and transfers one after another."""
    lanes = sum(lane.forward + max(lane.backward, lane.input_grad + lane.weight_grad) for lane in instance.lanes)
    flows = sum(flow.duration for flow in instance.flows)
    return instance.num_microbatches * (lanes + flows) + max(instance.synchronisation, default=0) + instance.tail


def scaled(instance: ScheduleInstance) -> Scaled:
    """`instance` divided by what its numbers have in common, and by more where that does not make sums safe."""
    ticks = _divisor(_times(instance), horizon_of(instance) // SAFE_TICKS)
    coarse = _coarsen(instance, ticks)
    is_exact = all(time % ticks == 0 for time in _times(instance))
    horizon = max(1, horizon_of(coarse))
    lanes, budgets = list(coarse.lanes), list(coarse.budgets)
    for device, budget in enumerate(coarse.budgets):
        sizes = [getattr(lane, name) for lane in coarse.lanes if lane.device == device for name in _SIZES]
        units = _divisor(sizes, min(budget, _most_units(coarse, device)) // (SAFE_AREA // horizon))
        budgets[device] = budget // units
        lanes = [_shrink(lane, _SIZES, units) if lane.device == device else lane for lane in lanes]
        is_exact = is_exact and all(size % units == 0 for size in sizes)
    return Scaled(instance=replace(coarse, lanes=tuple(lanes), budgets=tuple(budgets)), ticks=ticks, is_exact=is_exact)


def _divisor(numbers: list[int], factor: int) -> int:
    """The greatest common divisor, or about `factor` where that is more."""
    common = max(1, gcd(*numbers))
    return common * max(1, factor // common + 1) if factor else common


def _most_units(instance: ScheduleInstance, device: int) -> int:
    """Units that the device would hold if it kept everything."""
    lanes = [lane for lane in instance.lanes if lane.device == device]
    return sum(
        lane.workspace + (lane.held + lane.stash + lane.weight_stash) * instance.num_microbatches for lane in lanes
    )


def _times(instance: ScheduleInstance) -> list[int]:
    times = [getattr(lane, name) for lane in instance.lanes for name in _TIMES]
    return [*times, *(flow.duration for flow in instance.flows), *instance.synchronisation, instance.tail]


def _coarsen(instance: ScheduleInstance, ticks: int) -> ScheduleInstance:
    return replace(
        instance,
        lanes=tuple(_shrink(lane, _TIMES, ticks) for lane in instance.lanes),
        flows=tuple(replace(flow, duration=flow.duration // ticks) for flow in instance.flows),
        synchronisation=tuple(time // ticks for time in instance.synchronisation),
        tail=instance.tail // ticks,
    )


def _shrink(lane: Lane, names: tuple[str, ...], divisor: int) -> Lane:
    return replace(lane, **{name: getattr(lane, name) // divisor for name in names})
