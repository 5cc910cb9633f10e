"""What one device sends over the same links: they serve it in the order in which it gets ready; compiled.

All that one action sends is ready at its end, and goes in the order in which the net lists it. Of two actions of one
device, the first gets ready first, if the second takes any time: what it sends is through before the link takes what
the second sends. So an order of actions is one of transfers as well. What takes no time occupies no link.
"""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.exact_order.lower_bounds import split_backward
from solver_models.instance import FORWARD, Integers
from solver_models.simulation.columns import RETURNING
from solver_models.simulation.evaluator import LINKS, MICROBATCHES, Net

SENDER, RECEIVER, TICKS, IS_GRADIENT, QUEUE, DEVICE = range(6)
"""Columns of sends: the actions at both ends, ticks on the link, 1 for a gradient, the queue, the sender's device."""

MAX_SENDS = 62
"""Most transfers of a queue; in longer ones nothing is taken to wait."""


@kernel
def arrival_lags(net: Net) -> Integers:
    """[P] least ticks from the end of an action until each of the transfers that it sends has arrived."""
    lags = net.transfer_duration.copy()
    for outlet in range(2 * net.replica_stage.shape[0]):
        for f in range(net.transfer_start[outlet], net.transfer_start[outlet + 1]):
            for earlier in range(net.transfer_start[outlet], f):
                for x in range(net.scalars[LINKS]):
                    if _occupies(net, earlier, x) and _occupies(net, f, x):
                        lags[f] = max(lags[f], lags[earlier] + net.transfer_duration[f])
    return lags


@kernel
def _occupies(net: Net, f: int, link: int) -> bool:
    """Whether transfer f occupies a link."""
    route, found = net.transfer_route[f], False
    if route >= 0 and net.transfer_duration[f] > 0:
        for x in range(net.route_start[route], net.route_start[route + 1]):
            found = found or net.route_links[x] == link
    return found


@kernel
def list_sends(net: Net) -> Integers:
    """[S, 6] what may have to wait on a link for what its device has sent before, one queue after the other."""
    total, size, queue = net.scalars[MICROBATCHES], 0, 0
    least, returning = net.duration[:, FORWARD], split_backward(net)[RETURNING]
    most = 0
    for route in net.transfer_route:
        most += 0 if route < 0 else net.route_start[route + 1] - net.route_start[route]
    sends = np.zeros((most * total, DEVICE + 1), np.int64)
    for d in range(net.devices.shape[0]):
        for link in range(net.scalars[LINKS]):
            first, count, longest, quickest = size, 0, int64(0), int64(1) << 60
            for x in range(2 * net.device_start[d], 2 * net.device_start[d + 1]):
                n, kind = net.device_replicas[x // 2], x % 2
                ticks = returning[n] if kind else least[n]
                for f in range(net.transfer_start[2 * n + kind], net.transfer_start[2 * n + kind + 1]):
                    if ticks > 0 and _occupies(net, f, link):
                        count, quickest = count + 1, min(quickest, ticks)
                        longest = max(longest, net.transfer_duration[f])
                        for k in range(total):
                            row = sends[size]
                            row[SENDER], row[RECEIVER] = (n * 3 + kind) * total + k, net.transfer_target[f]
                            row[RECEIVER] = (row[RECEIVER] * 3 + kind) * total + k
                            row[TICKS], row[IS_GRADIENT] = net.transfer_duration[f], kind
                            row[QUEUE], row[DEVICE] = queue, d
                            size += 1
            if size - first > MAX_SENDS or (count < 2 and longest <= quickest):
                size = first
            queue += 1
    return sends[:size].copy()
