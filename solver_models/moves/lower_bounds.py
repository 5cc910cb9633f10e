"""Compiled floors under every order of a net, in time proportional to its lanes and flows: what no play can beat.

They are the first objective of the joint search, and spare it most plays afterwards. All are weaker forms of the
schedule bound of `docs/proofs/bounds.md`, with its proofs.
"""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers
from solver_models.simulation.columns import FORWARD_PART, GRADIENT_PART, HEAD, TAIL_AFTER, WORK
from solver_models.simulation.evaluator import FAR, MICROBATCHES, TAIL, Net, make_drains, make_shares

MAX_BITS = 62
"""Largest nets of which sets of lanes are kept as bits."""


@kernel
def _make_heads(net: Net, shares: Integers) -> Integers:
    """[N] no F of the lane starts earlier: the longest chain of forwards and transfers before it."""
    head = np.zeros(net.lane_stage.shape[0], np.int64)
    for n in range(head.shape[0]):  # lanes are ordered by stage, and forward flows lead to later stages
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            leave = head[n] + shares[n, FORWARD_PART] + net.flow_duration[f]
            head[net.flow_target[f]] = max(head[net.flow_target[f]], leave)
    return head


@kernel
def make_trips(net: Net, shares: Integers) -> Integers:
    """[N] from the start of an F of the lane to the end of its I: all the way down and back."""
    trip = np.zeros(net.lane_stage.shape[0], np.int64)
    for n in range(trip.shape[0] - 1, -1, -1):
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            target = net.flow_target[f]
            for g in range(net.flow_start[2 * target + 1], net.flow_start[2 * target + 2]):
                if net.flow_target[g] == n:
                    trip[n] = max(trip[n], net.flow_duration[f] + trip[target] + net.flow_duration[g])
        trip[n] += shares[n, FORWARD_PART] + shares[n, GRADIENT_PART]
    return trip


@kernel
def _lane_floor(
    net: Net, n: int, shares: Integers, head: Integers, drain: Integers, trip: Integers, in_flight: int
) -> int:
    """All F and I of a lane between its head and its drain; and, where memory limits it, round trip after round trip.

    The k-th I ends before the (k + in flight)-th F starts.
    """
    last = net.scalars[MICROBATCHES] - 1
    rounds = last // in_flight * trip[n] + last % in_flight * shares[n, FORWARD_PART] + trip[n]
    work = (last + 1) * (shares[n, FORWARD_PART] + shares[n, GRADIENT_PART])
    return head[n] + max(work, rounds) + drain[n]


@kernel
def _make_holders_above(net: Net) -> Integers:
    """[N] bits: the lanes that F of a microbatch passes before, and its I after; they hold it at least as long."""
    num_lanes = net.lane_stage.shape[0]
    above, after = np.zeros(num_lanes, np.int64), np.zeros(num_lanes, np.int64)
    if num_lanes > MAX_BITS:
        return above
    for n in range(num_lanes):
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            above[net.flow_target[f]] |= above[n] | (1 << n)
    for n in range(num_lanes - 1, -1, -1):
        for f in range(net.flow_start[2 * n + 1], net.flow_start[2 * n + 2]):
            after[n] |= after[net.flow_target[f]] | (1 << net.flow_target[f])
    return above & after


@kernel
def most_in_flight(net: Net, n: int, above: int) -> int:
    """Microbatches that lane n can hold at once; lanes above it on its device hold them all as well."""
    d, held = net.lane_device[n], net.held[n]
    for k in range(net.device_start[d], net.device_start[d + 1]):
        if above >> net.device_lanes[k] & 1:
            held += net.held[net.device_lanes[k]]
    if held == 0:
        return net.scalars[MICROBATCHES]
    return min(net.scalars[MICROBATCHES], max(1, net.budget[d] // held))


@kernel
def one_machine(jobs: Integers) -> int:
    """Jobs [J, 3] of head, work and tail, one at a time: those that begin late, or must end early, need all their work.

    What cannot start before the least head of a set is followed by the set's work and its least tail.
    """
    floor = int64(0)
    for k in range(jobs.shape[0]):
        late, least_tail, early, least_head = int64(0), FAR, int64(0), FAR
        for x in range(jobs.shape[0]):
            if jobs[x, HEAD] >= jobs[k, HEAD]:
                late += jobs[x, WORK]
                least_tail = min(least_tail, jobs[x, TAIL_AFTER])
            if jobs[x, TAIL_AFTER] >= jobs[k, TAIL_AFTER]:
                early += jobs[x, WORK]
                least_head = min(least_head, jobs[x, HEAD])
        floor = max(floor, jobs[k, HEAD] + late + least_tail, least_head + early + jobs[k, TAIL_AFTER])
    return floor


@kernel
def device_floor(
    net: Net, d: int, shares: Integers, head: Integers, drain: Integers, trip: Integers, above: Integers
) -> int:
    """The floor of a device and of its lanes.

    Its F, I and W are jobs of one machine; and before its first I it can run no more F than memory holds.
    """
    total, floor, first = net.scalars[MICROBATCHES], int64(0), net.device_start[d]
    jobs = np.zeros((3 * (net.device_start[d + 1] - first), 3), np.int64)
    work, early, least_end, first_return = int64(0), int64(0), FAR, FAR
    for k in range(first, net.device_start[d + 1]):
        n = net.device_lanes[k]
        in_flight = most_in_flight(net, n, above[n])
        floor = max(floor, _lane_floor(net, n, shares, head, drain, trip, in_flight))
        way, end = trip[n] - shares[n, FORWARD_PART] - shares[n, GRADIENT_PART], net.synchronisation[net.lane_stage[n]]
        for x in range(3):
            job = jobs[3 * (k - first) + x]
            job[HEAD] = head[n] + (0 if x == 0 else (shares[n, FORWARD_PART] + way if x == 1 else trip[n]))
            job[WORK] = total * shares[n, x]
            job[TAIL_AFTER] = way + shares[n, GRADIENT_PART] + drain[n] if x == 0 else (drain[n] if x == 1 else end)
            work += job[WORK]
        early += in_flight * shares[n, FORWARD_PART]
        least_end = min(least_end, end)
        first_return = min(first_return, head[n] + trip[n] - shares[n, GRADIENT_PART])
    if work == 0:
        return floor
    return max(floor, one_machine(jobs), first_return - early + work + least_end)


@kernel
def net_floors(net: Net) -> tuple[int, int]:
    """(ticks that no order of this net is below, sum of the floors of its devices)."""
    shares = make_shares(net)
    head, drain, trip = _make_heads(net, shares), make_drains(net, shares), make_trips(net, shares)
    above, floor, total = _make_holders_above(net), int64(0), int64(0)
    for d in range(net.budget.shape[0]):
        own = device_floor(net, d, shares, head, drain, trip, above)
        floor, total = max(floor, own), total + own
    return floor + net.scalars[TAIL], total


@kernel
def net_floor(net: Net) -> int:
    """Ticks that no order of this net is below."""
    return net_floors(net)[0]
