"""What can hold a stage replica: the devices and, where widths are open, groups of them that act as one."""

import numpy as np

from solver_models.device_rows import DeviceRow, as_one, device_table
from solver_models.instance import Instance, Integers
from solver_models.simulation.columns import KIND, WEIGHT_STASH_ONCE
from solver_models.simulation.evaluator import Net


def make_holders(instance: Instance) -> dict[str, Integers]:
    """The fields of `kernels.Layers` that are counted by holder, by type and width, or by width."""
    num_types, firsts = instance.work.shape[2], np.arange(len(instance.capacity))
    wide = instance.wide
    fields = {name: getattr(instance, name)[None] for name in _SIZES}
    fields["work"], fields["devices"] = instance.work, instance.devices
    known = np.ones((len(instance.work), *instance.work.shape[2:]), np.int64)
    fields["measured"] = _bits(known if instance.measured is None else instance.measured, first=0)
    fields["gradient"] = np.stack((instance.gradient, np.zeros_like(instance.gradient)))[None]
    fields["width_row"] = np.zeros(len(firsts), np.int64)
    fields["member_start"], fields["members"] = np.arange(len(firsts) + 1), firsts
    if wide is not None:
        members = np.array([device for group in wide.groups for device in group], dtype=np.int64)
        ends = np.cumsum([len(firsts), *(len(group) for group in wide.groups)])[1:]
        single = [DeviceRow(*row) for row in instance.devices.tolist()]
        groups = device_table([as_one([single[device] for device in group]) for group in wide.groups])
        groups[:, KIND] += wide.width_row * num_types
        fields["work"] = np.concatenate((instance.work, wide.work), axis=2)
        fields["measured"] = fields["measured"] + _bits(wide.measured, first=num_types)
        more = {"devices": groups, "gradient": wide.gradient, "width_row": wide.width_row, "member_start": ends}
        more |= {"members": members, **{name: wide.sizes[:, number] for number, name in enumerate(_SIZES)}}
        fields |= {name: np.concatenate((fields[name], rows)) for name, rows in more.items()}
        firsts = np.concatenate((firsts, np.array([group[0] for group in wide.groups], dtype=np.int64)))
    num_widths = fields["work"].shape[2] // num_types
    fields["shardable"], fields["weights"] = _sharded(instance, num_widths)
    of_stages = instance.overhead if instance.stages_overhead is None else instance.stages_overhead
    fields["overhead"] = np.tile(np.stack((instance.overhead, of_stages)), (1, num_widths, 1))
    steps = np.zeros(instance.work.shape[2:], np.int64) if instance.optimizer is None else instance.optimizer
    fields["optimizer"] = np.tile(steps, (num_widths, 1))
    nothing = np.zeros((2, 0, *fields["work"].shape[1:]), np.int64)
    fields["host"] = nothing if instance.host is None else instance.host
    fields["together"] = np.zeros((0, WEIGHT_STASH_ONCE + 1)) if instance.together is None else instance.together
    return {name: np.ascontiguousarray(field, dtype=np.int64) for name, field in fields.items()} | _routes(
        instance, firsts
    )


def holders_and_replicas(net: Net, first: list[int]) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Who holds the stage replicas that the first device of a group runs; the replica of each holder and stage."""
    places = list(zip(net.replica_device.tolist(), net.replica_stage.tolist(), strict=True))
    return {first[holder]: holder for holder, _ in places}, {place: number for number, place in enumerate(places)}


def _sharded(instance: Instance, num_widths: int) -> tuple[Integers, Integers]:
    """`shardable` and `weights` of `Layers`; nothing where no stage shards."""
    if instance.sharding is not None:
        return instance.sharding.optimizer, instance.sharding.weights
    num_layers = instance.work.shape[3]
    return np.zeros((num_widths, num_layers), np.int64), np.zeros((num_widths, 2, num_layers), np.int64)


def _bits(measured: Integers, *, first: int) -> Integers:
    """[tables, types, L] flags as [tables, L] bits, that of the first type being number `first`."""
    bits = np.left_shift(np.int64(1), np.arange(first, first + measured.shape[1], dtype=np.int64))
    found: Integers = (measured * bits[:, None]).sum(axis=1)
    return found


_SIZES = ("state", "stash", "weight_stash", "checkpoint", "workspace")
"""Fields in bytes, in the order of `WideGroups.sizes`."""


def _routes(instance: Instance, firsts: Integers) -> dict[str, Integers]:
    """Routes between holders are those between their first devices."""
    num_devices = len(instance.capacity)
    if len(firsts) == num_devices:
        return {name: getattr(instance, name) for name in ("latency", "bandwidth", "route_start", "route_links")}
    pairs = (firsts[:, None] * num_devices + firsts).ravel()
    lengths = instance.route_start[pairs + 1] - instance.route_start[pairs]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return {
        "latency": np.ascontiguousarray(instance.latency[np.ix_(firsts, firsts)]),
        "bandwidth": np.ascontiguousarray(instance.bandwidth[np.ix_(firsts, firsts)]),
        "route_start": starts.astype(np.int64),
        "route_links": instance.route_links[np.repeat(instance.route_start[pairs], lengths) + offsets],
    }
