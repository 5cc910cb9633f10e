"""Nets that are easier to search than the one that is asked for: its parts, and the net without gains.

A search that decides a pair of actions here and one there multiplies the orders of parts where it could add them: each
is searched by itself, and of twins one.
"""

from collections.abc import Hashable

import numpy as np

from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, Integers
from solver_models.simulation.evaluator import SPLIT, Net

_OF_LANES = ("lane_stage", "duration", "has_weight", "held", "stash", "weight_stash", "workspace", "weight_workspace")

_OF_FLOWS = ("flow_start", "flow_target", "flow_duration")


def split_net(net: Net) -> list[Net]:
    """The parts of a net that share no devices, flows or links, on the same devices and with the same stage numbers."""
    label = _labels(net)
    if not np.any(label):
        return [net]
    return [_part(net, np.nonzero(label == number)[0]) for number in np.unique(label)]


def likeness(net: Net) -> Hashable:
    """Everything about a net but which devices it uses: if it is the same, so are the orders, device by device.

    The devices as well where flows share links.
    """
    _, first, device = np.unique(net.lane_device, return_index=True, return_inverse=True)
    rank = net.lane_device if np.any(net.flow_shared) else np.argsort(np.argsort(first))[device]
    own = [getattr(net, name) for name in (*_OF_LANES, *_OF_FLOWS)]
    arrays = [rank, net.budget[net.lane_device], net.synchronisation[net.lane_stage], net.scalars, *own]
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)


def twin_devices(net: Net, twin: Net) -> dict[int, int]:
    """The device of a twin that stands for each device of a net."""
    return dict(zip(net.lane_device.tolist(), twin.lane_device.tolist(), strict=True))


def _labels(net: Net) -> Integers:
    """[N] the first lane that each is connected to, by devices, flows and links."""
    senders, label = _senders(net), np.arange(len(net.lane_stage))
    flow, link = _links(net)
    flows, devices = np.arange(len(senders)), len(net.budget)
    number = np.concatenate((net.lane_device, devices + flows, devices + flows, devices + len(flows) + link))
    lane = np.concatenate((np.arange(len(label)), senders, net.flow_target, senders[flow]))
    while True:
        before = label.copy()
        least = np.full(number.max() + 1, len(label))
        np.minimum.at(least, number, label[lane])
        np.minimum.at(label, lane, least[number])
        if np.array_equal(label, before):
            return label


def _links(net: Net) -> tuple[Integers, Integers]:
    """The flows that use links, and the links they use, in pairs."""
    pairs = [
        (flow, link)
        for flow, route in enumerate(net.flow_route.tolist())
        for link in (net.route_links[net.route_start[route] : net.route_start[route + 1]] if route >= 0 else ())
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _senders(net: Net) -> Integers:
    """[P] the lane that each flow comes from."""
    senders: Integers = np.repeat(np.arange(len(net.lane_stage)), np.diff(net.flow_start[::2]))
    return senders


def _part(net: Net, lanes: Integers) -> Net:
    """The net of these lanes alone."""
    flows = np.isin(_senders(net), lanes)
    place = np.searchsorted(lanes, np.arange(len(net.lane_stage)))
    sent = np.diff(net.flow_start).reshape(-1, 2)[lanes]
    held = np.bincount(net.lane_device[lanes], minlength=len(net.budget))
    own = {name: getattr(net, name)[lanes] for name in (*_OF_LANES, "lane_device", "num_inputs", "num_gradients")}
    sums = {
        name: np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        for name, counts in (("flow_start", sent), ("device_start", held))
    }
    kept = {name: getattr(net, name)[flows] for name in ("flow_way", "flow_duration", "flow_route", "flow_shared")}
    device_lanes = place[net.device_lanes[np.isin(net.device_lanes, lanes)]]
    return net._replace(**own, **sums, **kept, flow_target=place[net.flow_target[flows]], device_lanes=device_lanes)


def without_gains(net: Net) -> Net | None:
    """The net with W so short that B gains nothing, on links that nobody shares; None if B never does.

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
    empty = (net.lane_device * (len(net.budget) + 1))[_senders(net)]  # from a device to itself
    route = np.where(net.flow_route >= 0, empty, net.flow_route)
    return net._replace(duration=duration, flow_route=route, flow_shared=np.zeros_like(route))
