"""The same instance in coarser ticks and units: exact where a common divisor suffices, else relaxed."""

from dataclasses import dataclass, replace
from math import gcd

from solver_models.instance import ScheduleInstance, StageReplica
from solver_models.schedule.variables import is_counted

_SAFE_TICKS = 1 << 50
"""Longest horizon given to the solver."""

_SAFE_AREA = 1 << 60
"""Largest horizon x budget given to the solver."""

_TIMES = ("forward", "input_grad", "weight_grad", "backward")
_SIZES = ("held", "stash", "whole_backward", "weight_stash", "workspace", "weight_workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """An instance in coarser numbers, and how to read results in them."""

    original: ScheduleInstance
    """The instance itself."""
    instance: ScheduleInstance
    """Every duration and demand rounded down: whatever fits in the original fits here, and ends no later."""
    ticks: int
    """Original ticks in one tick of `instance`."""
    has_exact_times: bool
    """Whether no duration was rounded."""


def horizon_of(instance: ScheduleInstance) -> int:
    """Ticks that suffice for any schedule without idle time everywhere: all actions and transfers one after another."""
    lanes = sum(lane.forward + max(lane.backward, lane.input_grad + lane.weight_grad) for lane in instance.lanes)
    flows = sum(flow.duration for flow in instance.flows)
    return instance.num_microbatches * (lanes + flows) + max(instance.synchronisation, default=0) + instance.tail


def scaled(instance: ScheduleInstance) -> Scaled:
    """`instance` divided by what its numbers have in common, and by more where that does not make sums safe."""
    ticks = _divisor(_times(instance), horizon_of(instance) // _SAFE_TICKS)
    coarse = _coarsen(instance, ticks)
    largest = _SAFE_AREA // max(1, horizon_of(coarse))
    units = _all_units(coarse, largest=largest)
    return Scaled(
        original=instance,
        instance=replace(
            coarse,
            lanes=tuple(_shrink(lane, _SIZES, divisor=units[lane.device]) for lane in coarse.lanes),
            budgets=tuple(budget // unit for budget, unit in zip(coarse.budgets, units, strict=True)),
        ),
        ticks=ticks,
        has_exact_times=all(time % ticks == 0 for time in _times(instance)),
    )


def _all_units(instance: ScheduleInstance, *, largest: int) -> list[int]:
    """The divisor per device; one for all where groups overlap, since a lane has one size on all of its devices."""
    devices = range(len(instance.budgets))
    if not any(lane.others for lane in instance.lanes):
        return [_units(instance, device, largest=largest) for device in devices]
    most = max(min(instance.budgets[device], _most_units(instance, device)) for device in devices)
    sizes = [getattr(lane, name) for lane in instance.lanes for name in _SIZES]
    return [_divisor(sizes, most // largest)] * len(devices)


def _units(instance: ScheduleInstance, device: int, *, largest: int) -> int:
    """The divisor of the demands on a device; where stashes are only counted, their size does no harm."""
    lanes = [lane for lane in instance.lanes if lane.device == device]
    sizes = [getattr(lane, name) for lane in lanes for name in _SIZES]
    most = 0 if is_counted(instance, lanes) else min(instance.budgets[device], _most_units(instance, device))
    return _divisor(sizes, most // largest)


def _divisor(numbers: list[int], factor: int) -> int:
    """The greatest common divisor, or about `factor` where that is more."""
    common = max(1, gcd(*numbers))
    return common * max(1, factor // common + 1) if factor else common


def _most_units(instance: ScheduleInstance, device: int) -> int:
    """Units that the device would hold if it kept everything."""
    lanes = [lane for lane in instance.lanes if device in lane.devices]
    return sum(
        lane.workspace + (lane.held + lane.stash + lane.weight_stash) * instance.num_microbatches for lane in lanes
    )


def _times(instance: ScheduleInstance) -> list[int]:
    times = [getattr(lane, name) for lane in instance.lanes for name in _TIMES]
    return [*times, *(flow.duration for flow in instance.flows), *instance.synchronisation, instance.tail]


def _coarsen(instance: ScheduleInstance, ticks: int) -> ScheduleInstance:
    return replace(
        instance,
        lanes=tuple(_shrink(lane, _TIMES, divisor=ticks) for lane in instance.lanes),
        flows=tuple(replace(flow, duration=flow.duration // ticks) for flow in instance.flows),
        synchronisation=tuple(time // ticks for time in instance.synchronisation),
        tail=instance.tail // ticks,
    )


def _shrink(lane: StageReplica, names: tuple[str, ...], *, divisor: int) -> StageReplica:
    return replace(lane, **{name: getattr(lane, name) // divisor for name in names})
