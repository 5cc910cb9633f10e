"""Compiled lower bounds on every order of a net, in time proportional to its stage replicas and transfers: what no play
can beat.

They spare the joint search most plays, and an estimate in the same form is its first objective. The bounds are weaker
forms of the schedule bound of `docs/proofs/bounds.md`, with its proofs.
"""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY
from solver_models.instance import Integers
from solver_models.simulation.columns import FORWARD_PART, GRADIENT_PART, HEAD, REST_PART, TAIL_AFTER, WORK
from solver_models.simulation.evaluator import FAR, HOLDS, MICROBATCHES, TAIL, Net, make_drains, make_shares

MAX_BITS = 62
"""Largest nets of which sets of stage replicas are kept as bits."""

TURNAROUND, STAY = 0, 1
"""Rows of stays [2, N]: ticks from the start of F to the end of I of a stage replica at the least; and those that count
where memory limits how many microbatches are there, at the least or estimated."""


@kernel
def _make_heads(net: Net, shares: Integers) -> Integers:
    """[N] no F of the stage replica starts earlier: the longest chain of forwards and transfers before it."""
    head = np.zeros(net.replica_stage.shape[0], np.int64)
    for n in range(head.shape[0]):  # stage replicas are ordered by stage, and forward transfers lead to later stages
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 1]):
            leave = head[n] + shares[n, FORWARD_PART] + net.transfer_duration[f]
            head[net.transfer_target[f]] = max(head[net.transfer_target[f]], leave)
    return head


@kernel
def make_turnarounds(net: Net, shares: Integers) -> Integers:
    """[N] from the start of an F of the stage replica to the end of its I: all the way down and back."""
    turnaround = np.zeros(net.replica_stage.shape[0], np.int64)
    for n in range(turnaround.shape[0] - 1, -1, -1):
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 1]):
            target = net.transfer_target[f]
            for g in range(net.transfer_start[2 * target + 1], net.transfer_start[2 * target + 2]):
                if net.transfer_target[g] == n:
                    turnaround[n] = max(
                        turnaround[n], net.transfer_duration[f] + turnaround[target] + net.transfer_duration[g]
                    )
        turnaround[n] += shares[n, FORWARD_PART] + shares[n, GRADIENT_PART]
    return turnaround


@kernel
def _replica_lower_bound(
    net: Net, n: int, shares: Integers, head: Integers, drain: Integers, stays: Integers, in_flight: int
) -> int:
    """All F and I of a stage replica between its head and its drain; and, where memory limits it, stay after stay, then
    a turnaround.

    The k-th I ends before the (k + in flight)-th F starts.
    """
    last = net.scalars[MICROBATCHES] - 1
    rounds = last // in_flight * stays[STAY, n] + last % in_flight * shares[n, FORWARD_PART] + stays[TURNAROUND, n]
    work = (last + 1) * (shares[n, FORWARD_PART] + shares[n, GRADIENT_PART])
    return head[n] + max(work, rounds) + drain[n]


@kernel
def _make_holders_above(net: Net) -> Integers:
    """[N] bits: stage replicas that F of a microbatch passes before, and its I after: they hold it as long."""
    num_replicas = net.replica_stage.shape[0]
    above, after = np.zeros(num_replicas, np.int64), np.zeros(num_replicas, np.int64)
    if num_replicas > MAX_BITS:
        return above
    for n in range(num_replicas):
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 1]):
            above[net.transfer_target[f]] |= above[n] | (1 << n)
    for n in range(num_replicas - 1, -1, -1):
        for f in range(net.transfer_start[2 * n + 1], net.transfer_start[2 * n + 2]):
            after[n] |= after[net.transfer_target[f]] | (1 << net.transfer_target[f])
    return above & after


@kernel
def most_in_flight(net: Net, n: int, above: int) -> int:
    """Microbatches that replica n can hold at once; stage replicas above it on its device hold them all as well."""
    d, held = net.replica_device[n], net.held[n]
    for k in range(net.device_start[d], net.device_start[d + 1]):
        if above >> net.device_replicas[k] & 1:
            held += net.held[net.device_replicas[k]]
    if held == 0:
        return net.scalars[MICROBATCHES]
    return min(net.scalars[MICROBATCHES], max(1, net.devices[d, MEMORY] // held))


@kernel
def one_machine(jobs: Integers) -> int:
    """Jobs [J, 3] of head, work and tail, one at a time: those that begin late, or must end early, need all their work.

    What cannot start before the least head of a set is followed by the set's work and its least tail.
    """
    lower_bound = int64(0)
    for k in range(jobs.shape[0]):
        late, least_tail, early, least_head = int64(0), FAR, int64(0), FAR
        for x in range(jobs.shape[0]):
            if jobs[x, HEAD] >= jobs[k, HEAD]:
                late += jobs[x, WORK]
                least_tail = min(least_tail, jobs[x, TAIL_AFTER])
            if jobs[x, TAIL_AFTER] >= jobs[k, TAIL_AFTER]:
                early += jobs[x, WORK]
                least_head = min(least_head, jobs[x, HEAD])
        lower_bound = max(lower_bound, jobs[k, HEAD] + late + least_tail, least_head + early + jobs[k, TAIL_AFTER])
    return lower_bound


@kernel
def _most_held(net: Net, d: int) -> int:
    """The most units that F leave on a device at a time: whole microbatches, where it has one stage replica or two."""
    first, last, room = net.device_start[d], net.device_start[d + 1], net.devices[d, MEMORY]
    if last - first > 2:
        return room
    one, other = net.held[net.device_replicas[first]], int64(0)
    if last - first == 2:
        other = net.held[net.device_replicas[first + 1]]
    most, count = int64(0), net.scalars[MICROBATCHES]
    for x in range((min(count, room // one) if one > 0 else 0) + 1):
        left = room - x * one
        most = max(most, x * one + (min(count, left // other) * other if other > 0 else 0))
    return most


@kernel
def _held_estimate(net: Net, d: int, head: Integers, drain: Integers, stay: Integers) -> int:
    """Units x ticks of all stays on a device, if it holds as much as it can from its first head to its least drain; 0
    where it can hold all microbatches.
    """
    count, held, staying, least_head, least_drain = net.scalars[MICROBATCHES], int64(0), 0.0, FAR, FAR
    for k in range(net.device_start[d], net.device_start[d + 1]):
        n = net.device_replicas[k]
        held, staying = held + net.held[n], staying + float(net.held[n]) * stay[n]
        least_head, least_drain = min(least_head, head[n]), min(least_drain, drain[n])
    if count * held <= net.devices[d, MEMORY]:
        return int64(0)
    return least_head + int64(count * staying / max(_most_held(net, d), 1)) + least_drain


@kernel
def device_lower_bound(
    net: Net, d: int, shares: Integers, head: Integers, drain: Integers, stays: Integers, above: Integers
) -> int:
    """The lower bound of a device and of its stage replicas.

    Its F, I and W are jobs of one machine; and before its first I it can run no more F than memory holds.
    """
    total, lower_bound, first = net.scalars[MICROBATCHES], int64(0), net.device_start[d]
    turnaround = stays[TURNAROUND]
    jobs = np.zeros((3 * (net.device_start[d + 1] - first), 3), np.int64)
    work, early, least_end, first_return = int64(0), int64(0), FAR, FAR
    for k in range(first, net.device_start[d + 1]):
        n = net.device_replicas[k]
        in_flight = most_in_flight(net, n, above[n])
        lower_bound = max(lower_bound, _replica_lower_bound(net, n, shares, head, drain, stays, in_flight))
        outward, end = (
            turnaround[n] - shares[n, FORWARD_PART] - shares[n, GRADIENT_PART],
            net.synchronisation[net.replica_stage[n]],
        )
        for x in range(3):
            job = jobs[3 * (k - first) + x]
            job[HEAD] = head[n] + (0 if x == 0 else (shares[n, FORWARD_PART] + outward if x == 1 else turnaround[n]))
            job[WORK] = total * shares[n, x]
            job[TAIL_AFTER] = outward + shares[n, GRADIENT_PART] + drain[n] if x == 0 else (drain[n] if x == 1 else end)
            work += job[WORK]
        early += in_flight * shares[n, FORWARD_PART]
        least_end = min(least_end, end)
        first_return = min(first_return, head[n] + turnaround[n] - shares[n, GRADIENT_PART])
    if work == 0:
        return lower_bound
    return max(lower_bound, one_machine(jobs), first_return - early + work + least_end)


@kernel
def _busy_ticks(net: Net, shares: Integers) -> Integers:
    """[D] what a device computes, sends and receives in all, one after the other."""
    busy, total = np.zeros(net.devices.shape[0], np.int64), net.scalars[MICROBATCHES]
    for n in range(shares.shape[0]):
        busy[net.replica_device[n]] += total * np.sum(shares[n])
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 2]):
            busy[net.replica_device[n]] += total * net.transfer_duration[f]
            busy[net.replica_device[net.transfer_target[f]]] += total * net.transfer_duration[f]
    return busy


@kernel
def net_lower_bounds(net: Net) -> tuple[int, int]:
    """(ticks that no order of this net is below, sum of the lower bounds of its devices)."""
    return _rate(net, False)


@kernel
def net_estimates(net: Net) -> tuple[int, int]:
    """As `net_lower_bounds`, but where memory is scarce what good orders come to, which orders may be below.

    A microbatch then stays as if its gradient waited for the rest of every backward pass on its way, and stays share
    the memory of a device.
    """
    return _rate(net, True)


@kernel
def _rate(net: Net, by_estimate: bool) -> tuple[int, int]:
    """The figures of `net_lower_bounds` or `net_estimates`."""
    shares = make_shares(net)
    stays = np.empty((2, shares.shape[0]), np.int64)
    stays[TURNAROUND] = stays[STAY] = make_turnarounds(net, shares)
    if by_estimate:
        whole = shares.copy()
        whole[:, GRADIENT_PART] += shares[:, REST_PART]
        stays[STAY] = make_turnarounds(net, whole)
    head, drain = _make_heads(net, shares), make_drains(net, shares)
    above, lower_bound, total = _make_holders_above(net), int64(0), int64(0)
    for d in range(net.devices.shape[0]):
        own = device_lower_bound(net, d, shares, head, drain, stays, above)
        if by_estimate:
            own = max(own, _held_estimate(net, d, head, drain, stays[STAY]))
        lower_bound, total = max(lower_bound, own), total + own
    if net.scalars[HOLDS] > 0:
        busy = _busy_ticks(net, shares)
        lower_bound, total = max(lower_bound, int64(np.max(busy))), max(total, int64(np.sum(busy)))
    return lower_bound + net.scalars[TAIL], total


@kernel
def net_lower_bound(net: Net) -> int:
    """Ticks that no order of this net is below."""
    return net_lower_bounds(net)[0]
