"""Compiled floors under every order of a net, in time proportional to its lanes and flows: what no play can beat.

They are the first objective of the joint search, and spare it most plays afterwards. All are weaker forms of the
schedule bound of `docs/bounds.md`; there stand the proofs at length.
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.kernels import FAR, MICROBATCHES, TAIL, make_drains, make_shares


@kernel
def make_heads(net, shares):
    """[N] no F of the lane starts earlier: the longest chain of forwards and transfers before it."""
    head = np.zeros(net.lane_stage.shape[0], np.int64)
    for n in range(head.shape[0]):  # lanes are ordered by stage, and forward flows lead to later stages
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            leave = head[n] + shares[n, 0] + net.flow_duration[f]
            head[net.flow_target[f]] = max(head[net.flow_target[f]], leave)
    return head


@kernel
def make_trips(net, shares):
    """[N] from the start of an F of the lane to the end of its I: all the way down and back."""
    trip = np.zeros(net.lane_stage.shape[0], np.int64)
    for n in range(trip.shape[0] - 1, -1, -1):
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            target = net.flow_target[f]
            for g in range(net.flow_start[2 * target + 1], net.flow_start[2 * target + 2]):
                if net.flow_target[g] == n:
                    trip[n] = max(trip[n], net.flow_duration[f] + trip[target] + net.flow_duration[g])
        trip[n] += shares[n, 0] + shares[n, 1]
    return trip


@kernel
def lane_floor(net, n, shares, head, drain, trip, in_flight):
    """All F and I of a lane between its head and its drain; and, where memory limits it, round trip after round trip.

    The k-th I ends before the (k + in flight)-th F starts.
    """
    last = net.scalars[MICROBATCHES] - 1
    rounds = last // in_flight * trip[n] + last % in_flight * shares[n, 0] + trip[n]
    work = (last + 1) * (shares[n, 0] + shares[n, 1])
    return head[n] + max(work, rounds) + drain[n]


@kernel
def device_floor(net, d, shares, head, drain, trip):
    """The floor of a device and of its lanes.

    All its work lies between its least head and its least all-reduce; all F and I before its least drain; and before
    its first I it can run no more F than memory holds.
    """
    total, floor = net.scalars[MICROBATCHES], np.int64(0)
    work, returning, early = np.int64(0), np.int64(0), np.int64(0)
    least_head, least_end, least_drain, first_return = FAR, FAR, FAR, FAR
    for k in range(net.device_start[d], net.device_start[d + 1]):
        n = net.device_lanes[k]
        in_flight = total if net.held[n] == 0 else min(total, max(1, net.budget[d] // net.held[n]))
        floor = max(floor, lane_floor(net, n, shares, head, drain, trip, in_flight))
        work += total * (shares[n, 0] + shares[n, 1] + shares[n, 2])
        returning += total * (shares[n, 0] + shares[n, 1])
        early += in_flight * shares[n, 0]
        least_head = min(least_head, head[n])
        least_end = min(least_end, net.synchronisation[net.lane_stage[n]])
        least_drain = min(least_drain, drain[n])
        first_return = min(first_return, head[n] + trip[n] - shares[n, 1])
    if work == 0:
        return floor
    begin = max(least_head, first_return - early)
    return max(floor, begin + max(work + least_end, returning + least_drain))


@kernel
def net_floor(net):
    """(ticks that no order of this net is below, sum of the floors of its devices)."""
    shares = make_shares(net)
    head, drain, trip = make_heads(net, shares), make_drains(net, shares), make_trips(net, shares)
    floor, total = np.int64(0), np.int64(0)
    for d in range(net.budget.shape[0]):
        own = device_floor(net, d, shares, head, drain, trip)
        floor, total = max(floor, own), total + own
    return floor + net.scalars[TAIL], total
