"""Compiled: loads and memory of intervals in constant time, and the dynamic programmes over them."""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers
from solver_models.partition.partition_instance import PartitionInstance
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS
from solver_models.simulation.evaluator import ceil_div, ticks_for

RING_LATENCY, RING_BANDWIDTH = 0, 1
"""Columns of `ring`."""

ORDER_CLASS, ORDER_REPLICAS = 0, 1
"""Columns of an order of classes of devices along the stages."""


@kernel
def part(t: PartitionInstance, kind: int, i: int, j: int, c: int, r: int) -> int:
    """Ticks of one kind of work (0 F, 1 what others wait for, 2 backward) on each of r replicas of layers i to j."""
    own = t.work[t.table_of_replicas[r], kind, c]
    return ceil_div(own[j] - own[i], r)


@kernel
def rest(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Ticks of the part of the backward that no other stage waits for."""
    return max(0, part(t, 2, i, j, c, r) - part(t, 1, i, j, c, r))


@kernel
def work(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Ticks of a microbatch on each replica."""
    return part(t, 0, i, j, c, r) + max(part(t, 1, i, j, c, r), part(t, 2, i, j, c, r))


@kernel
def synchronisation(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Ticks of the all-reduce of layers i to j over r replicas."""
    size = t.gradient[j] - t.gradient[i]
    if r == 1 or size == 0:
        return int64(0)
    return ticks_for(2 * (r - 1) * size, r * t.ring[c, r, RING_BANDWIDTH]) + 2 * (r - 1) * t.ring[c, r, RING_LATENCY]


@kernel
def _own_load(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Ticks per microbatch that keep a replica busy, its share of the all-reduce included."""
    return work(t, i, j, c, r) + ceil_div(synchronisation(t, i, j, c, r), t.num_microbatches)


@kernel
def load(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Ticks per microbatch that keep a replica, or the link into it, busy."""
    return max(_own_load(t, i, j, c, r), ceil_div(max(t.cut_ticks[ACTIVATIONS, i], t.cut_ticks[GRADIENTS, i]), r))


@kernel
def _largest_workspace(t: PartitionInstance, i: int, j: int) -> int:
    """Largest workspace of layers i to j (sparse table)."""
    level = 0
    while (2 << level) <= j - i:
        level += 1
    return max(t.workspace[level, i], t.workspace[level, j - (1 << level)])


@kernel
def room(t: PartitionInstance, i: int, j: int, c: int, r: int) -> int:
    """Units left for stashes on each replica of layers i to j."""
    buffers = ceil_div(t.cut_units[ACTIVATIONS, i] + t.cut_units[GRADIENTS, j], r)
    return t.capacity[c] - (t.state[j] - t.state[i]) - _largest_workspace(t, i, j) - buffers


@kernel
def fits(t: PartitionInstance, i: int, j: int, c: int, r: int) -> bool:
    """Whether layers i to j fit in memory with one microbatch in flight, the least that any plan needs."""
    return ceil_div(t.stash[j] - t.stash[i], r) <= room(t, i, j, c, r)


@kernel
def furthest(t: PartitionInstance, j: int, c: int, r: int, limit: int) -> int:
    """Least i such that layers i to j make a stage within `limit`; j if there is none.

    Work, all-reduce, state and stash only grow with the interval; transfers and buffers at the cut need not, so from
    there on they are looked at one by one.
    """
    low, high = 0, j
    while low < high:
        i = (low + high) // 2
        held = t.state[j] - t.state[i] + ceil_div(t.stash[j] - t.stash[i], r)
        if _own_load(t, i, j, c, r) <= limit and held <= t.capacity[c]:
            high = i
        else:
            low = i + 1
    for i in range(low, j):
        if load(t, i, j, c, r) <= limit and fits(t, i, j, c, r):
            return i
    return j


@kernel
def reach(
    t: PartitionInstance, limit: int, allowed: Integers, stride: Integers, most_stages: int
) -> tuple[Integers, Integers]:
    """[K + 1, U] least layer from which k stages on the devices u reach the end, every load within `limit`; and the
    last step to it as class * (R + 1) + replicas. `u` counts the devices used per class, in mixed radix `stride`.

    Exact, for a stage within the limit stays within it when layers are taken away from its end, unless the gradients'
    receive buffer at the new end is so much larger that it breaks the memory limit.
    """
    num_layers, num_classes = t.state.shape[0] - 1, t.class_sizes.shape[0]
    num_uses = stride[num_classes]
    start = np.full((most_stages + 1, num_uses), num_layers + 1, np.int64)
    step = np.zeros((most_stages + 1, num_uses), np.int64)
    start[0, 0] = num_layers
    for k in range(most_stages):
        for u in range(num_uses):
            j = start[k, u]
            if j > num_layers or j == 0:
                continue
            for c in range(num_classes):
                used = u // stride[c] % (t.class_sizes[c] + 1)
                for r in range(1, min(allowed.shape[0] - 1, t.class_sizes[c] - used) + 1):
                    to = u + r * stride[c]
                    if allowed[r] and start[k + 1, to] > 0:
                        i = furthest(t, j, c, r, limit)
                        if i < j and i < start[k + 1, to]:
                            start[k + 1, to] = i
                            step[k + 1, to] = c * allowed.shape[0] + r
    return start, step


@kernel
def reach_in_order(t: PartitionInstance, order: Integers, limit: int) -> Integers:
    """[S + 1] first layers of the stages when each, from the last on, takes all it can within `limit`; the end is L.

    The first entry is above 0 if they do not reach the first layer; stages that are not needed are empty.
    """
    num_stages = order.shape[0]
    first = np.full(num_stages + 1, t.state.shape[0] - 1, np.int64)
    for s in range(num_stages - 1, -1, -1):
        j = first[s + 1]
        first[s] = furthest(t, j, order[s, ORDER_CLASS], order[s, ORDER_REPLICAS], limit)
    return first


@kernel
def _latest_starts(t: PartitionInstance, order: Integers, limit: int) -> Integers:
    """[S + 1] the last layer at which each stage of `order` can start if the work of those before is within `limit`."""
    num_stages, num_layers = order.shape[0], t.state.shape[0] - 1
    latest = np.zeros(num_stages + 1, np.int64)
    for s in range(num_stages):
        c, r, i = order[s, ORDER_CLASS], order[s, ORDER_REPLICAS], latest[s]
        low, high = i, num_layers
        while low < high:
            j = (low + high + 1) // 2
            if work(t, i, j, c, r) <= limit:
                low = j
            else:
                high = j - 1
        latest[s + 1] = low
    return latest


@kernel
def allowances(
    t: PartitionInstance, order: Integers, limit: int, drain_percent: int, lowest: Integers, highest: Integers
) -> tuple[Integers, Integers]:
    """[S + 1, L + 1] latest start of stage s at layer i such that stages s, s + 1, ... of `order` end within `limit`.

    Below 0 there is none. Also [S, L], the end of stage s then. `order` [S, 2] is class and replicas.
    A stage that starts at h ends no earlier than h + its work + its all-reduce, and h + F + I + drain, where the drain
    is taken as `drain_percent` of h. Stage s starts at one of the layers lowest[s] to highest[s].
    """
    num_stages, num_layers, m = order.shape[0], t.state.shape[0] - 1, t.num_microbatches
    allowance = np.full((num_stages + 1, num_layers + 1), -1, np.int64)
    end = np.zeros((num_stages, num_layers), np.int64)
    allowance[num_stages, num_layers] = 1 << 61
    most = limit // m
    latest, earliest = _latest_starts(t, order, most), num_layers
    for s in range(num_stages - 1, -1, -1):
        c, r, least = order[s, ORDER_CLASS], order[s, ORDER_REPLICAS], num_layers
        for i in range(min(latest[s], highest[s]), lowest[s] - 1, -1):
            for j in range(max(i + 1, earliest), latest[s + 1] + 1):
                if allowance[s + 1, j] < 0:
                    continue
                f, b, whole = part(t, 0, i, j, c, r), part(t, 1, i, j, c, r), work(t, i, j, c, r)
                if whole > most:
                    break
                if not fits(t, i, j, c, r):
                    continue
                early = (limit - m * (f + b)) * 100 // (100 + drain_percent)
                early = min(early, limit - m * whole - synchronisation(t, i, j, c, r))
                early = min(early, allowance[s + 1, j] - f - t.cut_ticks[ACTIVATIONS, j])
                if early > allowance[s, i]:
                    allowance[s, i] = early
                    end[s, i] = j
                    least = i
        earliest = least
    return allowance, end
