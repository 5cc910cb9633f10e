"""The schedule bound, compiled: what no order of a net beats, from heads, tails, memory and one-machine relaxations.

The proofs are those of docs/proofs/bounds.md (schedule bound). Microbatches are distinguished by their rank in time
only.

Heads run down the stage replicas and back up, tails the other way round, in passes until nothing changes. Where memory
holds 2 microbatches of replica 0, its third F waits for its first I, and so the turnaround comes back into the heads:

    replica 0   F0 --- F1       F2 <-----+         heads: earliest end of the k-th F, and of the k-th I
              |      |                |         tails: what follows, at the least, an F or I after which k more come
    replica 1    +-> F0 +-> F1           |
                   |      |           |         head + tail of any action is a bound on the iteration
    replica 1         I0     I1          |
                   |                  |
    replica 0         +-> I0 ------------+
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY
from solver_models.instance import FORWARD, Integers
from solver_models.simulation.columns import GRADIENT_PART, GRADIENTS, HEAD, REST, RETURNING, TAIL_AFTER, WORK
from solver_models.simulation.evaluator import LINKS, MICROBATCHES, TAIL, Net, make_shares

NEVER = -(1 << 60)
"""Before every time that matters."""

_FIRST_RANK = 0
"""Of the microbatches by time."""

MAX_PASSES = 24
"""Passes over all stage replicas; each leaves valid bounds."""

MAX_REPLICAS, MAX_RANKS = 60, 64
"""Largest nets that are bounded this way: sets of stage replicas are bits, and every pair of ranks is looked at."""

FORWARD_END, RETURN_END, FORWARD_TAIL, RETURN_TAIL = 0, 1, 2, 3
"""Indices into times [4, N, M]: earliest ends of the k-th F and I, and what follows those after which k more come."""

FORCED, TO_FORWARD, RETURN_TO_FORWARD, TO_RETURN, RETURN_TO_RETURN = 0, 1, 2, 3, 4
"""Indices into rounds [N, 5, M]: the work between two events of a stage replica whose ranks differ by n."""

INPUTS, OUTPUTS, RETURNS_FROM, RETURNS_TO = 0, 1, 2, 3
"""Indices into colocated [4, N]: stage replicas of the same device (as bits) that a stage replica waits for, or that
wait for it."""


class _ReplicaWork(NamedTuple):
    """What stage replicas have to do between two events, by which heads and tails are raised."""

    parts: Integers
    """[2, N] `split_backward`."""
    sums: Integers
    """[5, N] `_sum_colocated`."""
    rounds: Integers
    """[N, 5, M] how memory makes F, I and W of a stage replica take turns."""
    shared: Integers
    """[N, M] the forced work of `rounds`, with the I of the stage replicas on the same device that come before."""
    in_flight: Integers
    """[N] `most_in_flight`."""


@kernel
def split_backward(net: Net) -> Integers:
    """[2, N] ticks of the part of a backward pass before the gradient leaves, and of the rest, at least."""
    return make_shares(net)[:, GRADIENT_PART:].T.copy()


@kernel
def find_colocated(net: Net) -> Integers:
    """[4, N] bits: stage replicas on the same device whose F come before (after), whose I come before (after) a stage
    replica's own.
    """
    num_replicas = net.replica_stage.shape[0]
    needs, serves = np.zeros(num_replicas, np.int64), np.zeros(num_replicas, np.int64)
    for n in range(num_replicas):
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 1]):
            needs[net.transfer_target[f]] |= needs[n] | (1 << n)
    for n in range(num_replicas - 1, -1, -1):
        for f in range(net.transfer_start[2 * n + 1], net.transfer_start[2 * n + 2]):
            serves[net.transfer_target[f]] |= serves[n] | (1 << n)
    colocated = np.zeros((4, num_replicas), np.int64)
    for n in range(num_replicas):
        for m in range(num_replicas):
            if net.replica_device[m] == net.replica_device[n]:
                bit = int64(1) << m
                colocated[INPUTS, n] |= needs[n] & bit
                colocated[RETURNS_FROM, n] |= serves[n] & bit
                if needs[m] >> n & 1:
                    colocated[OUTPUTS, n] |= bit
                if serves[m] >> n & 1:
                    colocated[RETURNS_TO, n] |= bit
    return colocated


@kernel
def total(values: Integers, bits: int) -> int:
    """The sum of the values whose bit is set."""
    result = int64(0)
    for n in range(values.shape[0]):
        if bits >> n & 1:
            result += values[n]
    return result


@kernel
def _fill_forced(row: Integers, returning: int, rest: int, most: int, held: int, kept: int, budget: int) -> None:
    """Per n: the least work of I and W before the n-th F, by memory alone."""
    for n in range(row.shape[0]):
        least = max(n + 1 - most, 0)
        if rest == 0 or kept == 0:
            row[n] = least * returning
            continue
        best = int64(-NEVER)
        for a in range(least, n + 1):
            excess = (n + 1 - a) * held + a * kept - budget
            finished = min(max(-((-excess) // kept), 0), a)
            best = min(best, a * returning + finished * rest)
        row[n] = best


FORWARD_STEP, RETURN_STEP, FORWARD_AFTER, RETURN_AFTER, LAST_SYNC = 0, 1, 2, 3, 4
"""Indices into sums [5, N]: work per microbatch of a stage replica and those colocated with it before the end of its F
and I, and after them; and the least synchronisation on its device."""


@kernel
def _sum_colocated(net: Net, parts: Integers, colocated: Integers) -> Integers:
    """[5, N] what the colocated stage replicas add up to."""
    num_replicas = net.replica_stage.shape[0]
    sums = np.zeros((5, num_replicas), np.int64)
    forward = net.duration[:, FORWARD].copy()
    for n in range(num_replicas):
        sums[FORWARD_STEP, n] = forward[n] + total(forward, colocated[INPUTS, n])
        sums[RETURN_STEP, n] = parts[RETURNING, n] + total(parts[RETURNING], colocated[RETURNS_FROM, n])
        sums[RETURN_STEP, n] += total(forward, colocated[INPUTS, n] | colocated[RETURNS_FROM, n] | (int64(1) << n))
        both = colocated[OUTPUTS, n] | colocated[RETURNS_TO, n]
        sums[FORWARD_AFTER, n] = parts[RETURNING, n] + parts[REST, n] + total(forward, colocated[OUTPUTS, n])
        sums[FORWARD_AFTER, n] += total(parts[RETURNING], both) + total(parts[REST], both)
        sums[RETURN_AFTER, n] = total(parts[RETURNING], colocated[RETURNS_TO, n]) + total(
            parts[REST], colocated[RETURNS_TO, n]
        )
        sums[LAST_SYNC, n] = int64(-NEVER)
        for m in range(num_replicas):
            if net.replica_device[m] == net.replica_device[n]:
                sums[LAST_SYNC, n] = min(sums[LAST_SYNC, n], net.synchronisation[net.replica_stage[m]])
    return sums


@kernel
def _make_rounds(net: Net, parts: Integers, colocated: Integers, in_flight: Integers) -> tuple[Integers, Integers]:
    """[N, 5, M]: how memory makes F, I, W of a stage replica take turns; [N, M]: with the I of those colocated."""
    num_replicas, count = net.replica_stage.shape[0], net.scalars[MICROBATCHES]
    rounds = np.zeros((num_replicas, 5, count), np.int64)
    shared = np.zeros((num_replicas, count), np.int64)
    for n in range(num_replicas):
        forward, returning, rest, most = net.duration[n, FORWARD], parts[RETURNING, n], parts[REST, n], in_flight[n]
        held, kept = net.held[n], net.weight_stash[n]
        budget = net.devices[net.replica_device[n], MEMORY] - net.workspace[n]
        _fill_forced(rounds[n, FORCED], returning, rest, most, held, kept, budget)
        both = returning + total(parts[RETURNING], colocated[RETURNS_FROM, n])
        _fill_forced(shared[n], both, rest, most, held, kept, budget)
        for k in range(count):
            finished = int64(0)
            if rest > 0 and 0 < kept <= held and k >= most:
                finished = rest * max(-((budget - held - k * kept) // kept), 0)
            rounds[n, TO_FORWARD, k] = (k + 1) * forward + rounds[n, FORCED, k]
            new = max(k + 1 - most, 0) * forward
            rounds[n, RETURN_TO_FORWARD, k] = new + rounds[n, FORCED, k] if k >= most else NEVER
            rounds[n, TO_RETURN, k] = (k + 1) * (forward + returning) + finished
            rounds[n, RETURN_TO_RETURN, k] = (k + 1) * returning + new + finished
    return rounds, shared


@kernel
def most_in_flight(net: Net, colocated: Integers) -> Integers:
    """[N] F of a stage replica that may have started without their I having ended."""
    in_flight = np.empty(net.replica_stage.shape[0], np.int64)
    for n in range(in_flight.shape[0]):
        held = net.held[n] + total(net.held, colocated[RETURNS_TO, n])
        most = net.scalars[MICROBATCHES]
        if held > 0:
            most = min(most, (net.devices[net.replica_device[n], MEMORY] - net.workspace[n]) // held)
        in_flight[n] = max(1, most)
    return in_flight


@kernel
def _raise_after(end: Integers, starts: Integers, work: Integers, count: int) -> None:
    """end[k] = max(end[k], starts[j] + work[k - j]) over j <= k."""
    for k in range(count):
        for j in range(k + 1):
            end[k] = max(end[k], starts[j] + work[k - j])


@kernel
def _raise_heads(net: Net, replica_work: _ReplicaWork, times: Integers, n: int, direction: int) -> None:
    """Raise the earliest ends of the F (direction  ) or I (direction  ) of replica n by memory, by its device and by
    its own queue.

    `times` holds, on entry, in row 4 + way the arrivals.
    """
    count, most, rounds = net.scalars[MICROBATCHES], replica_work.in_flight[n], replica_work.rounds
    forward, returning = net.duration[n, FORWARD], replica_work.parts[RETURNING, n]
    ready, end = times[4 + direction, n], times[direction, n]
    base = int64(-NEVER)
    for m in range(net.replica_stage.shape[0]):
        if net.replica_device[m] == net.replica_device[n]:
            base = min(base, times[FORWARD_END, m, _FIRST_RANK] - net.duration[m, FORWARD])
    base = max(base, 0)
    if direction == 0:
        for k in range(most, count):
            ready[k] = max(ready[k], times[RETURN_END, n, k - most])
        _raise_after(end, ready, rounds[n, TO_FORWARD], count)
        _raise_after(end, times[RETURN_END, n] - returning, rounds[n, RETURN_TO_FORWARD], count)
        step = replica_work.sums[FORWARD_STEP, n]
        for k in range(count):
            end[k] = max(end[k], base + (k + 1) * step + replica_work.shared[n, k])
        time = forward
    else:
        time = returning
        _raise_after(end, times[FORWARD_END, n] - forward, rounds[n, TO_RETURN], count)
        step = replica_work.sums[RETURN_STEP, n]
        for k in range(count):
            end[k] = max(end[k], base + (k + 1) * step)
    for k in range(count):
        end[k] = max(end[k], ready[k] + time)
        if k > 0:
            end[k] = max(end[k], end[k - 1] + time)
    if direction == 1:
        for k in range(count):
            ready[k] = max(ready[k], end[k] - time)
        _raise_after(end, ready, rounds[n, RETURN_TO_RETURN], count)


@kernel
def _send_heads(net: Net, times: Integers, n: int, direction: int) -> None:
    """Pass the ends of replica n on to the stage replicas that wait for them."""
    count = net.scalars[MICROBATCHES]
    for f in range(net.transfer_start[2 * n + direction], net.transfer_start[2 * n + direction + 1]):
        target, ticks = net.transfer_target[f], net.transfer_duration[f]
        for k in range(count):
            times[4 + direction, target, k] = max(times[4 + direction, target, k], times[direction, n, k] + ticks)


@kernel
def _raise_tails(net: Net, replica_work: _ReplicaWork, times: Integers, n: int, direction: int) -> None:
    """Raise what follows the F (direction  ) or I (direction  ) of replica n after which k more come."""
    count, most = net.scalars[MICROBATCHES], replica_work.in_flight[n]
    parts, sums = replica_work.parts, replica_work.sums
    forward, returning, rest = net.duration[n, FORWARD], parts[RETURNING, n], parts[REST, n]
    sync = net.synchronisation[net.replica_stage[n]]
    tail = times[2 + direction, n]
    if direction == 0:
        after = sums[FORWARD_AFTER, n]
        for k in range(count):
            need = max(returning + times[RETURN_TAIL, n, k], k * forward + (k + 1) * after + sums[LAST_SYNC, n])
            tail[k] = max(tail[k], need, k * forward + (k + 1) * (returning + rest) + sync)
    else:
        after = sums[RETURN_AFTER, n]
        for k in range(count):
            own = max(k + 1 - most, 0) * forward + k * returning + (k + 1) * rest
            tail[k] = max(tail[k], own + (k + 1) * after + sums[LAST_SYNC, n], own + sync)
            if k >= most:
                tail[k] = max(tail[k], forward + times[FORWARD_TAIL, n, k - most])
    time = forward if direction == 0 else returning
    for f in range(net.transfer_start[2 * n + direction], net.transfer_start[2 * n + direction + 1]):
        target = net.transfer_target[f]
        ticks = net.transfer_duration[f] + (
            net.duration[target, FORWARD] if direction == 0 else parts[RETURNING, target]
        )
        for k in range(count):
            tail[k] = max(tail[k], ticks + times[2 + direction, target, k])
    for k in range(1, count):
        tail[k] = max(tail[k], tail[k - 1] + time)


@kernel
def one_machine(jobs: Integers, count: int) -> int:
    """Least end, tails included, of jobs [., 3] (head, time, tail) on one resource, preemption allowed (Jackson)."""
    if count == 0:
        return int64(0)
    left = jobs[:count, WORK].copy()
    now, result, open_jobs = int64(0), int64(0), count
    for x in range(count):
        if left[x] == 0:
            open_jobs -= 1
    while open_jobs > 0:
        best, following = -1, int64(-NEVER)
        for x in range(count):
            if left[x] > 0:
                if jobs[x, HEAD] <= now:
                    if best < 0 or jobs[x, TAIL_AFTER] > jobs[best, TAIL_AFTER]:
                        best = x
                else:
                    following = min(following, jobs[x, HEAD])
        if best < 0:
            now = following
            continue
        step = min(left[best], following - now)
        now += step
        left[best] -= step
        if left[best] == 0:
            open_jobs -= 1
            result = max(result, now + jobs[best, TAIL_AFTER])
    return result


@kernel
def device_lower_bound(net: Net, parts: Integers, times: Integers, d: int, jobs: Integers) -> int:
    """The one-machine bound of a device."""
    count, size = net.scalars[MICROBATCHES], 0
    for x in range(net.device_start[d], net.device_start[d + 1]):
        n = net.device_replicas[x]
        for k in range(count):
            jobs[size, HEAD] = times[FORWARD_END, n, k] - net.duration[n, FORWARD]
            jobs[size, WORK] = net.duration[n, FORWARD]
            jobs[size, TAIL_AFTER] = times[FORWARD_TAIL, n, count - 1 - k]
            jobs[size + 1, HEAD] = times[RETURN_END, n, k] - parts[RETURNING, n]
            jobs[size + 1, WORK] = parts[RETURNING, n]
            jobs[size + 1, TAIL_AFTER] = times[RETURN_TAIL, n, count - 1 - k]
            jobs[size + 2, HEAD] = times[RETURN_END, n, k]
            jobs[size + 2, WORK] = parts[REST, n]
            jobs[size + 2, TAIL_AFTER] = net.synchronisation[net.replica_stage[n]]
            size += 3
    return one_machine(jobs, size)


@kernel
def most_pending(net: Net, parts: Integers, a: int, b: int, space: int) -> int:
    """The most work of W whose microbatches so many bytes keep, of stage replicas a and b (-1: of a alone)."""
    count, most = net.scalars[MICROBATCHES], int64(0)
    for x in range(count + 1):
        left = space - x * net.weight_stash[a]
        if left < 0:
            break
        work = x * parts[REST, a]
        if b >= 0:
            y = count
            if net.weight_stash[b] > 0:
                y = min(y, left // net.weight_stash[b])
            work += y * parts[REST, b]
        most = max(most, work)
    return most


NUM_BEGUN, BEGUN, LEFT = 0, 1, 2
"""Indices into what fits [3]: F without their I, their work, and that of backward passes held or kept for."""


@kernel
def _most_at_a_time(net: Net, parts: Integers, a: int, b: int, is_nested: bool) -> Integers:
    """[3] the most of stage replicas a and b (-1: of a alone) that fits into their device at a time.

    If nested, a holds all that b does.
    """
    count, d = net.scalars[MICROBATCHES], net.replica_device[a]
    budget, held, kept = net.devices[d, MEMORY] - net.workspace[a], int64(0), net.weight_stash[a]
    forward, backward, whole = int64(0), int64(0), parts[RETURNING, a] + parts[REST, a]
    if b >= 0:
        budget = max(budget, net.devices[d, MEMORY] - net.workspace[b])
        held, kept = net.held[b], kept + net.weight_stash[b]
        forward, backward = net.duration[b, FORWARD], parts[RETURNING, b] + parts[REST, b]
    most = np.zeros(3, np.int64)
    if count * (net.held[a] + held + kept) <= budget:
        most[NUM_BEGUN] = count if b < 0 else 2 * count
        most[BEGUN], most[LEFT] = count * (net.duration[a, FORWARD] + forward), count * (whole + backward)
        return most
    for x in range(count + 1):
        others = 0
        if b >= 0:
            others = x if is_nested else count
        for y in range(others + 1):
            space = max(budget, 0) - x * net.held[a] - y * held
            if space < 0:
                break
            most[NUM_BEGUN] = max(most[NUM_BEGUN], x + y)
            most[BEGUN] = max(most[BEGUN], x * net.duration[a, FORWARD] + y * forward)
            most[LEFT] = max(most[LEFT], x * whole + y * backward + most_pending(net, parts, a, b, space))
    most[LEFT] = min(most[LEFT], count * (whole + backward))
    return most


@kernel
def in_order(times: Integers, other: Integers) -> Integers:
    """The times of two rows, merged ascending."""
    merged = np.concatenate((times, other))
    merged.sort()
    return merged


@kernel
def _memory_lower_bound(net: Net, parts: Integers, colocated: Integers, times: Integers, d: int) -> int:
    """The bound of a device with one or two stage replicas by what it waits for before an I and after an F."""
    count, a, b = net.scalars[MICROBATCHES], net.device_replicas[net.device_start[d]], -1
    work = parts[RETURNING] + parts[REST] + net.duration[:, FORWARD]
    starts, tails = times[RETURN_END, a] - parts[RETURNING, a], times[FORWARD_TAIL, a]
    head = times[FORWARD_END, a, _FIRST_RANK] - net.duration[a, FORWARD]
    last, whole, step = net.synchronisation[net.replica_stage[a]], work[a], work[a]
    if net.device_start[d + 1] - net.device_start[d] == 2:
        b = net.device_replicas[net.device_start[d] + 1]
        starts = in_order(starts, times[RETURN_END, b] - parts[RETURNING, b])
        tails = in_order(tails, times[FORWARD_TAIL, b])
        head = min(head, times[FORWARD_END, b, _FIRST_RANK] - net.duration[b, FORWARD])
        last, whole, step = min(last, net.synchronisation[net.replica_stage[b]]), whole + work[b], max(step, work[b])
        if colocated[RETURNS_FROM, b] >> a & 1:
            a, b = b, a
    most = _most_at_a_time(net, parts, a, b, b >= 0 and colocated[RETURNS_FROM, a] >> b & 1 != 0)
    size = starts.shape[0]
    after = np.empty(size, np.int64)
    for c in range(size):
        after[c] = tails[c] - most[LEFT] - c * step
        if c > 0:
            after[c] = max(after[c], after[c - 1])
    idle = head + max(last, after[size - 1])
    for c in range(size):
        before = starts[c] - most[BEGUN] - c * step
        idle = max(idle, before + last)
        # as many F, from the last one back, start after this I
        distance = size - most[NUM_BEGUN] - c
        if distance >= 1:
            idle = max(idle, before + after[distance - 1])
    return count * whole + idle


@kernel
def _link_lower_bound(net: Net, parts: Integers, times: Integers, link: int, jobs: Integers) -> int:
    """The one-machine bound of a link."""
    count, size = net.scalars[MICROBATCHES], 0
    for n in range(net.replica_stage.shape[0]):
        for direction in range(2):
            for f in range(net.transfer_start[2 * n + direction], net.transfer_start[2 * n + direction + 1]):
                route, target = net.transfer_route[f], net.transfer_target[f]
                uses = False
                if route >= 0:
                    for x in range(net.route_start[route], net.route_start[route + 1]):
                        uses = uses or net.route_links[x] == link
                for k in range(count if uses else 0):
                    jobs[size, HEAD] = times[direction, n, k]
                    jobs[size, WORK] = net.transfer_duration[f]
                    jobs[size, TAIL_AFTER] = times[2 + direction, target, count - 1 - k]
                    jobs[size, TAIL_AFTER] += (
                        net.duration[target, FORWARD] if direction == 0 else parts[RETURNING, target]
                    )
                    size += 1
    return one_machine(jobs, size)


@kernel
def settle_times(
    net: Net, parts: Integers, colocated: Integers, in_flight: Integers, threshold: int
) -> tuple[Integers, int]:
    """[6, N, M] heads and tails, raised until nothing changes (rows 4 and 5: arrivals)."""
    num_replicas, count = net.replica_stage.shape[0], net.scalars[MICROBATCHES]
    rounds, shared = _make_rounds(net, parts, colocated, in_flight)
    times = np.full((6, num_replicas, count), NEVER, np.int64)
    times[4] = 0
    replica_work = _ReplicaWork(parts, _sum_colocated(net, parts, colocated), rounds, shared, in_flight)
    for _ in range(MAX_PASSES):
        before = times[:4].sum()
        for n in range(num_replicas):
            _raise_heads(net, replica_work, times, n, 0)
            _send_heads(net, times, n, 0)
            _raise_tails(net, replica_work, times, n, 1)
        for n in range(num_replicas - 1, -1, -1):
            for k in range(count):
                times[4 + GRADIENTS, n, k] = max(times[4 + GRADIENTS, n, k], times[FORWARD_END, n, k])
            _raise_heads(net, replica_work, times, n, 1)
            _send_heads(net, times, n, 1)
            _raise_tails(net, replica_work, times, n, 0)
        worst = int64(0)
        for n in range(num_replicas):
            for k in range(count):
                worst = max(worst, times[RETURN_END, n, k] + times[RETURN_TAIL, n, count - 1 - k])
        if worst + net.scalars[TAIL] >= threshold or times[:4].sum() == before:
            return times, worst
    return times, worst


@kernel
def schedule_lower_bound(net: Net, threshold: int) -> int:
    """Ticks of an iteration that no order of the net beats; from `threshold` on it need not be the best there is.

    0 for more than `MAX_REPLICAS` stage replicas: nothing is claimed of them.
    """
    if net.replica_stage.shape[0] > MAX_REPLICAS:
        return int64(0)
    parts, colocated = split_backward(net), find_colocated(net)
    in_flight = most_in_flight(net, colocated)
    times, lower_bound = settle_times(net, parts, colocated, in_flight, threshold)
    if lower_bound + net.scalars[TAIL] >= threshold:
        return lower_bound + net.scalars[TAIL]
    size = 3 * net.replica_stage.shape[0] + net.transfer_target.shape[0]
    jobs = np.empty((size * net.scalars[MICROBATCHES], 3), np.int64)
    for d in range(net.devices.shape[0]):
        if net.device_start[d + 1] > net.device_start[d]:
            lower_bound = max(lower_bound, device_lower_bound(net, parts, times, d, jobs))
            if net.device_start[d + 1] - net.device_start[d] <= 2:
                lower_bound = max(lower_bound, _memory_lower_bound(net, parts, colocated, times, d))
    for link in range(net.scalars[LINKS]):
        lower_bound = max(lower_bound, _link_lower_bound(net, parts, times, link, jobs))
    return lower_bound + net.scalars[TAIL]
