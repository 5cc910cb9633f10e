"""What can hold a stage replica: the devices and, where widths are open, groups of them that act as one."""

import numpy as np

from solver_models.device_rows import KIND, DeviceRow, as_one, device_table
from solver_models.instance import Instance, Integers, Layers
from solver_models.simulation.evaluator import Net


def with_groups(instance: Instance) -> Layers:
    """The layers with the groups as holders beside the devices, if widths are open."""
    layers, wide = instance.layers, instance.wide
    if wide is None:
        return layers
    members = [*layers.members.tolist(), *(device for group in wide.groups for device in group)]
    ends = instance.num_devices + np.cumsum([len(group) for group in wide.groups])
    single = [DeviceRow(*row) for row in layers.devices.tolist()]
    groups = device_table([as_one([single[device] for device in group]) for group in wide.groups])
    groups[:, KIND] += wide.width_row * instance.num_types
    firsts = np.array([*range(instance.num_devices), *(group[0] for group in wide.groups)], np.int64)
    return layers._replace(
        devices=np.concatenate((layers.devices, groups)),
        width_row=np.concatenate((layers.width_row, wide.width_row)),
        member_start=np.concatenate((layers.member_start, ends)),
        members=np.array(members, np.int64),
        **_routes(layers, firsts),
    )


def holders_and_replicas(net: Net, first: list[int]) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Who holds the stage replicas that the first device of a group runs; the replica of each holder and stage."""
    places = list(zip(net.replica_device.tolist(), net.replica_stage.tolist(), strict=True))
    return {first[holder]: holder for holder, _ in places}, {place: number for number, place in enumerate(places)}


def _routes(layers: Layers, firsts: Integers) -> dict[str, Integers]:
    """Routes between holders are those between their first devices."""
    pairs = (firsts[:, None] * len(layers.devices) + firsts).ravel()
    lengths = layers.route_start[pairs + 1] - layers.route_start[pairs]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return {
        "latency": np.ascontiguousarray(layers.latency[np.ix_(firsts, firsts)]),
        "bandwidth": np.ascontiguousarray(layers.bandwidth[np.ix_(firsts, firsts)]),
        "route_start": starts.astype(np.int64),
        "route_links": layers.route_links[np.repeat(layers.route_start[pairs], lengths) + offsets],
    }
