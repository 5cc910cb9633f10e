"""The same instance in coarser ticks and units: exact where a common divisor suffices, else relaxed."""

from dataclasses import dataclass, replace
from math import gcd

from solver_models.instance import ScheduleInstance, StageReplica
from solver_models.schedule.variables import is_counted

_SAFE_TICKS = 1 << 50
"""Longest horizon given to the solver."""

_SAFE_AREA = 1 << 60
"""Largest horizon x budget given to the solver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """An instance in coarser numbers, and how to read results in them."""

    original: ScheduleInstance
    instance: ScheduleInstance
    """Every duration and demand rounded down: whatever fits in the original fits here, and ends no later."""
    ticks: int
    """Original ticks in one tick of `instance`."""
    has_exact_times: bool
    """Whether no duration was rounded."""


def horizon_of(instance: ScheduleInstance) -> int:
    """Ticks that suffice for any schedule without idle time everywhere: all actions and transfers one after another."""
    replicas = sum(
        replica.forward + max(replica.backward, replica.input_grad + replica.weight_grad)
        for replica in instance.replicas
    )
    transfers = sum(transfer.duration for transfer in instance.transfers)
    begin = max(device.free_from for device in instance.devices)
    last = max(instance.synchronisation, default=0) + instance.tail
    return begin + instance.num_microbatches * (replicas + transfers) + last


def scaled(instance: ScheduleInstance) -> Scaled:
    """`instance` divided by what its numbers have in common, and by more where that does not make sums safe."""
    ticks = _divisor(_times(instance), horizon_of(instance) // _SAFE_TICKS)
    coarse = _coarsen(instance, ticks)
    largest = _SAFE_AREA // max(1, horizon_of(coarse))
    units = [_units(coarse, device, largest=largest) for device in range(len(coarse.devices))]
    return Scaled(
        original=instance,
        instance=replace(
            coarse,
            replicas=tuple(_shrink(each, StageReplica.SIZES, divisor=units[each.device]) for each in coarse.replicas),
            devices=tuple(row.coarser(ticks=1, units=unit) for row, unit in zip(coarse.devices, units, strict=True)),
        ),
        ticks=ticks,
        has_exact_times=all(time % ticks == 0 for time in _times(instance)),
    )


def _units(instance: ScheduleInstance, device: int, *, largest: int) -> int:
    """The divisor of the demands on a device; where stashes are only counted, their size does no harm."""
    replicas = [replica for replica in instance.replicas if replica.device == device]
    sizes = [getattr(replica, name) for replica in replicas for name in StageReplica.SIZES]
    if is_counted(instance, replicas):
        return _divisor(sizes, 0)
    most = sum(
        replica.workspace + (replica.held + replica.stash + replica.weight_stash) * instance.num_microbatches
        for replica in replicas
    )
    return _divisor(sizes, min(instance.devices[device].memory, most) // largest)


def _divisor(numbers: list[int], factor: int) -> int:
    """The greatest common divisor, or about `factor` where that is more."""
    common = max(1, gcd(*numbers))
    return common * max(1, factor // common + 1) if factor else common


def _times(instance: ScheduleInstance) -> list[int]:
    times = [getattr(replica, name) for replica in instance.replicas for name in StageReplica.TIMES]
    times += [device.free_from for device in instance.devices]
    return [*times, *(transfer.duration for transfer in instance.transfers), *instance.synchronisation, instance.tail]


def _coarsen(instance: ScheduleInstance, ticks: int) -> ScheduleInstance:
    return replace(
        instance,
        replicas=tuple(_shrink(replica, StageReplica.TIMES, divisor=ticks) for replica in instance.replicas),
        devices=tuple(device.coarser(ticks=ticks, units=1) for device in instance.devices),
        transfers=tuple(replace(transfer, duration=transfer.duration // ticks) for transfer in instance.transfers),
        synchronisation=tuple(time // ticks for time in instance.synchronisation),
        tail=instance.tail // ticks,
    )


def _shrink(replica: StageReplica, names: tuple[str, ...], *, divisor: int) -> StageReplica:
    return replace(replica, **{name: getattr(replica, name) // divisor for name in names})
