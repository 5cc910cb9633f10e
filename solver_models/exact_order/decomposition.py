"""Nets that are easier to search than the one that is asked for: its parts, and the net without gains.

A search that decides a pair of actions here and one there multiplies the orders of parts where it could add them: each
is searched by itself, and of twins one.
"""

from collections.abc import Hashable

import numpy as np

from solver_models.exact_order.link_queues import arrival_lags
from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, Integers
from solver_models.simulation.evaluator import SPLIT, Net

_OF_REPLICAS = tuple(name for name in Net._fields[: Net._fields.index("device_start")] if name != "replica_device")
"""What stands of every stage replica, its device aside."""

_OF_TRANSFERS = ("transfer_start", "transfer_target", "transfer_duration")


def split_net(net: Net) -> list[Net]:
    """The parts of a net that share no devices, transfers or links, with the same numbers of devices and stages."""
    label = _labels(net)
    if not np.any(label):
        return [net]
    return [_part(net, np.nonzero(label == number)[0]) for number in np.unique(label)]


def likeness(net: Net) -> Hashable:
    """Everything about a net but which devices it uses: if it is the same, so are the orders, device by device.

    The devices as well where transfers share links.
    """
    _, first, device = np.unique(net.replica_device, return_index=True, return_inverse=True)
    rank = net.replica_device if np.any(net.transfer_shared) else np.argsort(np.argsort(first))[device]
    own = [getattr(net, name) for name in (*_OF_REPLICAS, *_OF_TRANSFERS)]
    arrays = [rank, net.devices[net.replica_device], net.synchronisation[net.replica_stage], net.scalars, *own]
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)


def twin_devices(net: Net, twin: Net) -> dict[int, int]:
    """Per device of the net, the device of the twin in its place."""
    return dict(zip(net.replica_device.tolist(), twin.replica_device.tolist(), strict=True))


def _labels(net: Net) -> Integers:
    """[N] the first stage replica that each is connected to, by devices, transfers and links."""
    senders, label = _senders(net), np.arange(len(net.replica_stage))
    transfer, link = _links(net)
    transfers, devices = np.arange(len(senders)), len(net.devices)
    number = np.concatenate(
        (net.replica_device, devices + transfers, devices + transfers, devices + len(transfers) + link)
    )
    replica = np.concatenate((np.arange(len(label)), senders, net.transfer_target, senders[transfer]))
    while True:
        before = label.copy()
        least = np.full(number.max() + 1, len(label))
        np.minimum.at(least, number, label[replica])
        np.minimum.at(label, replica, least[number])
        if np.array_equal(label, before):
            return label


def _links(net: Net) -> tuple[Integers, Integers]:
    """The transfers that use links, and the links they use, in pairs."""
    pairs = [
        (transfer, link)
        for transfer, route in enumerate(net.transfer_route.tolist())
        for link in (net.route_links[net.route_start[route] : net.route_start[route + 1]] if route >= 0 else ())
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _senders(net: Net) -> Integers:
    """[P] the stage replica that each transfer comes from."""
    return np.repeat(np.arange(len(net.replica_stage)), np.diff(net.transfer_start[::2]))


def _part(net: Net, replicas: Integers) -> Net:
    """The net of these stage replicas alone."""
    transfers = np.isin(_senders(net), replicas)
    place = np.searchsorted(replicas, np.arange(len(net.replica_stage)))
    sent = np.diff(net.transfer_start).reshape(-1, 2)[replicas]
    held = np.bincount(net.replica_device[replicas], minlength=len(net.devices))
    arrays = {name: getattr(net, name) for name in (*_OF_REPLICAS, "replica_device", "num_inputs", "num_gradients")}
    own = {name: array[replicas] if len(array) else array for name, array in arrays.items()}
    sums = {
        name: np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        for name, counts in (("transfer_start", sent), ("device_start", held))
    }
    kept = {
        name: getattr(net, name)[transfers]
        for name in ("transfer_direction", "transfer_duration", "transfer_route", "transfer_shared")
    }
    device_replicas = place[net.device_replicas[np.isin(net.device_replicas, replicas)]]
    return net._replace(
        **own, **sums, **kept, transfer_target=place[net.transfer_target[transfers]], device_replicas=device_replicas
    )


def without_savings(net: Net) -> Net | None:
    """The net with W so short that B gains nothing, on links that only what one action sends shares; None if
    B never does.

    No order takes longer there, whether a backward pass is one action is no question, and W come in order.
    """
    duration, whole = net.duration.copy(), net.duration[:, BACKWARD]
    fusible = (
        (net.has_weight == 1) & (net.scalars[SPLIT] == 1) & (whole < duration[:, INPUT_GRAD] + duration[:, WEIGHT_GRAD])
    )
    if not np.any(fusible):
        return None
    duration[:, INPUT_GRAD] = np.where(fusible, np.minimum(duration[:, INPUT_GRAD], whole), duration[:, INPUT_GRAD])
    duration[:, WEIGHT_GRAD] = np.where(fusible, whole - duration[:, INPUT_GRAD], duration[:, WEIGHT_GRAD])
    empty = (net.replica_device * (len(net.devices) + 1))[_senders(net)]  # from a device to itself
    route = np.where(net.transfer_route >= 0, empty, net.transfer_route)
    free, lags = np.zeros_like(route), arrival_lags(net)
    return net._replace(duration=duration, transfer_duration=lags, transfer_route=route, transfer_shared=free)
