"""The same instance in coarser ticks and units, every figure rounded so that no plan is lost and none becomes worse."""

from dataclasses import replace

from solver_models.complete.complete_instance import ActionTimes, CompleteInstance, DeviceTransfer, LayerSet, Sizes


def coarsened(instance: CompleteInstance, *, ticks: int, units: int) -> CompleteInstance:
    """ActionTimes in `ticks` and sizes in `units`, rounded down, memory rounded up.

    What fits and when it ends in the given instance, fits and ends no later in this one: its optimum is a bound.
    """
    if ticks == units == 1:
        return instance
    return replace(
        instance,
        devices=tuple(device.coarser(ticks=ticks, units=units, rounds_up=True) for device in instance.devices),
        sets=tuple(_coarse_set(each, ticks=ticks, units=units) for each in instance.sets),
        transfers={key: _coarse_transfer(transfer, ticks) for key, transfer in instance.transfers.items()},
        buffers={key: size // units for key, size in instance.buffers.items()},
        tail=instance.tail // ticks,
        horizon=instance.horizon // ticks,
    )


def _coarse_set(layers: LayerSet, *, ticks: int, units: int) -> LayerSet:
    return replace(
        layers,
        times={key: ActionTimes(*(each // ticks for each in times)) for key, times in layers.times.items()},
        sizes={kind: _coarse_sizes(sizes, units) for kind, sizes in layers.sizes.items()},
        synchronisation={assignment: time // ticks for assignment, time in layers.synchronisation.items()},
        steps={number: time // ticks for number, time in layers.steps.items()},
    )


def _coarse_sizes(sizes: Sizes, units: int) -> Sizes:
    """What an action adds to what is held, stash - held, is rounded down as well."""
    held = sizes.held // units
    return Sizes(*(each // units for each in sizes))._replace(stash=held + (sizes.stash - sizes.held) // units)


def _coarse_transfer(transfer: DeviceTransfer, ticks: int) -> DeviceTransfer:
    duration = transfer.duration // ticks
    return DeviceTransfer(duration, transfer.links if duration else frozenset())
