"""The compiled evaluator: a partition, a mapping and an order (or a policy that makes one) to times and memory.

`assemble` adds layers up to lanes and flows, `play` runs them event by event under the rules of MODEL.md sections 3
and 4. Everything is an int64 array; microbatches are taken in order by every lane, so counters describe the state.
"""

from typing import NamedTuple

import numpy as np

from solver_models.instance import Integers
from solver_models.jit import kernel

FAR = 1 << 61
"""Time of something that never happens."""


class Layers(NamedTuple):
    """The open problem as arrays: L layers, E edges, D lane holders, K link resources (see `Instance`).

    What holds a lane is a device or, where widths are open, a group of devices that acts as one (`WideGroups`); all
    of them are called devices here. T counts the types, once per width; V the widths.
    """

    work: Integers
    """[tables, 5, T, L] ticks of F, I, W, B and recomputation."""
    table_of_replicas: Integers
    """[max replicas + 1] index into `work`, or `NO_TABLE` where a stage may not have so many replicas."""
    overhead: Integers
    """[T, 4] ticks that F, I, W and B cost beyond their layers."""
    gradient: Integers
    """[V, 2, L] units that replicas synchronise: stated for the width, and those to be cut into equal parts."""
    state: Integers
    """[V, L] resident units."""
    stash: Integers
    """[V, L] units from F to I."""
    weight_stash: Integers
    """[V, L] units of it that stay to the end of W."""
    checkpoint: Integers
    """[V, L] units that remain when the stage recomputes."""
    workspace: Integers
    """[V, L] units while an action runs."""
    measured: Integers
    """[tables, L] a bit per type (and width) on which the layer has a cost."""
    trainable: Integers
    """[L] 1 if the layer has a W."""
    frozen: Integers
    """[L] 1 if it is frozen."""
    edges: Integers
    """[E, 6] producer, consumer, forward units, backward units, gradient flag, rank; sorted by producer."""
    device_type: Integers
    """[D] type index (and width)."""
    width_row: Integers
    """[D] index into V."""
    member_start: Integers
    """[D + 1] where the members of a group begin in `members`."""
    members: Integers
    """Devices of the groups; a single device is its own only member."""
    capacity: Integers
    """[D] units of memory."""
    latency: Integers
    """[D, D] ticks of the route."""
    bandwidth: Integers
    """[D, D] units per 10**9 ticks of the route."""
    route_start: Integers
    """[D * D + 1] where the links of the route from a to b begin in `route_links`, at a * D + b."""
    route_links: Integers
    """Link resources of all routes."""
    options: Integers
    """[5] microbatches, link resources, receive buffers, tail, 1 if I and W may run apart."""


class Net(NamedTuple):
    """N lanes (replicas of S stages, by stage) and the P flows between them, ready to be played."""

    lane_stage: Integers
    """[N] stage."""
    lane_device: Integers
    """[N] device."""
    duration: Integers
    """[N, 4] ticks of F, I, W, B."""
    has_weight: Integers
    """[N] 1 if there is a W."""
    held: Integers
    """[N] units from the start of F to the end of I or B."""
    stash: Integers
    """[N] units while I or B runs."""
    weight_stash: Integers
    """[N] units from the end of I to the end of W."""
    workspace: Integers
    """[N] units while anything runs."""
    device_start: Integers
    """[D + 1] where the lanes of a device begin in `device_lanes`."""
    device_lanes: Integers
    """[N] lanes, by device, then by stage."""
    budget: Integers
    """[D] units left beside what is resident."""
    flow_start: Integers
    """[2 * N + 1] where the flows of lane n in direction w (0 forward, 1 backward) begin, at 2 * n + w."""
    flow_target: Integers
    """[P] receiving lane."""
    flow_duration: Integers
    """[P] ticks."""
    flow_route: Integers
    """[P] index into `route_start`, or -1 inside a device."""
    flow_shared: Integers
    """[P] 1 if another flow uses one of its links."""
    num_inputs: Integers
    """[N] forward flows that arrive per microbatch."""
    num_gradients: Integers
    """[N] backward flows that arrive per microbatch."""
    route_start: Integers
    """As in `Layers`."""
    route_links: Integers
    """As in `Layers`."""
    synchronisation: Integers
    """[S] ticks of the all-reduce after the stage's last action."""
    scalars: Integers
    """`options` of `Layers`."""


class Policy(NamedTuple):
    """How a list schedule chooses."""

    cap: Integers
    """[N] most microbatches between F and I."""
    lag: Integers
    """[D] W are put off until so many wait."""
    mode: Integers
    """[D] sum of the bits below."""


MICROBATCHES, LINKS, BUFFERS, TAIL, SPLIT = 0, 1, 2, 3, 4
"""Indices into `options` of Layers and `scalars` of Net."""

FUSE, FORWARD_FIRST, DEPTH_FIRST, WAIT = 1, 2, 4, 8
"""Bits of `Policy.mode`: fuse I and W; F before I; deepest stage first; no W while an I is about to come."""


@kernel
def ceil_div(a: int, b: int) -> int:
    """The quotient a / b, rounded up."""
    return -((-a) // b)


@kernel
def stage_sums(layers, stage_of, start, devices, recompute):
    """[S, T, 4] ticks of F, I, W, B on the types of its devices and [S, 9] units and flags of every stage."""
    num_stages, num_layers, num_types = start.shape[0] - 1, stage_of.shape[0], layers.work.shape[2]
    replicas = start[1:] - start[:-1]
    used = np.zeros((num_stages, num_types), np.bool_)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            used[s, layers.device_type[devices[n]]] = True
    times = np.zeros((num_stages, num_types, 4), np.int64)
    sizes = np.zeros((num_stages, 9), np.int64)
    for x in range(num_layers):
        s = stage_of[x]
        v = layers.width_row[devices[start[s]]]
        table = layers.table_of_replicas[replicas[s]]
        for t in range(num_types):
            if not used[s, t]:
                continue
            extra = layers.work[table, 4, t, x] if recompute[s] else 0
            times[s, t, 0] += layers.work[table, 0, t, x]
            times[s, t, 1] += layers.work[table, 1, t, x] + extra
            times[s, t, 2] += layers.work[table, 2, t, x]
            times[s, t, 3] += layers.work[table, 3, t, x] + extra
        sizes[s, 0] += layers.state[v, x]
        sizes[s, 1] += layers.checkpoint[v, x] if recompute[s] else layers.stash[v, x]
        sizes[s, 2] += layers.stash[v, x]
        sizes[s, 3] += layers.weight_stash[v, x]
        sizes[s, 4] = max(sizes[s, 4], layers.workspace[v, x])
        sizes[s, 5] = max(sizes[s, 5], layers.trainable[x])
        sizes[s, 6] += layers.gradient[v, 0, x]
        sizes[s, 7] += 1 - layers.frozen[x]
        sizes[s, 8] += layers.gradient[v, 1, x]
    for s in range(num_stages):
        for t in range(num_types):
            for k in range(4):
                times[s, t, k] = ceil_div(times[s, t, k], replicas[s])
        for k in range(1, 4):
            sizes[s, k] = ceil_div(sizes[s, k], replicas[s])
        if sizes[s, 5] == 0:
            sizes[s, 3] = 0
        group = devices[start[s]]
        sizes[s, 6] += ceil_div(sizes[s, 8], layers.member_start[group + 1] - layers.member_start[group])
    return times, sizes


@kernel
def stage_traffic(layers, stage_of, num_stages):
    """[P, 6] sender stage, receiver stage, forward units, backward units, gradient flag, rank of the first edge.

    In order of that rank, as the simulator serves flows that are ready together.
    """
    edges = layers.edges
    pair_of = np.full(num_stages * num_stages, -1, np.int64)
    pairs = np.zeros((min(edges.shape[0], num_stages * num_stages), 6), np.int64)
    last_producer = np.full(pairs.shape[0], -1, np.int64)
    last = np.zeros((pairs.shape[0], 2), np.int64)
    count = 0
    for e in range(edges.shape[0]):
        a, b = stage_of[edges[e, 0]], stage_of[edges[e, 1]]
        if a == b:
            continue
        p = pair_of[a * num_stages + b]
        if p < 0:
            p = count
            count += 1
            pair_of[a * num_stages + b] = p
            pairs[p, 0], pairs[p, 1], pairs[p, 5] = a, b, edges[e, 5]
        if last_producer[p] != edges[e, 0]:
            last_producer[p] = edges[e, 0]
            last[p, 0], last[p, 1] = 0, 0
        forward, backward = max(last[p, 0], edges[e, 2]), max(last[p, 1], edges[e, 3])
        pairs[p, 2] += forward - last[p, 0]
        pairs[p, 3] += backward - last[p, 1]
        last[p, 0], last[p, 1] = forward, backward
        pairs[p, 4] = max(pairs[p, 4], edges[e, 4])
        pairs[p, 5] = min(pairs[p, 5], edges[e, 5])
    for p in range(1, count):
        if pairs[p, 5] < pairs[p - 1, 5]:
            return pairs[np.argsort(pairs[:count, 5])]
    return pairs[:count]


@kernel
def ticks_for(size, bandwidth):
    """10**9 * size / bandwidth rounded up, without overflow for bandwidths below 9e15."""
    quotient, rest = size // bandwidth, size % bandwidth
    for _ in range(3):
        rest *= 1000
        quotient = quotient * 1000 + rest // bandwidth
        rest %= bandwidth
    return quotient + (1 if rest > 0 else 0)


@kernel
def ring_ticks(layers, size, devices):
    """All-reduce of `size` units over `devices` in the order listed."""
    r = devices.shape[0]
    slowest, latency = FAR, 0
    for i in range(r):
        a, b = devices[i], devices[(i + 1) % r]
        slowest = min(slowest, layers.bandwidth[a, b])
        latency = max(latency, layers.latency[a, b])
    return ticks_for(2 * (r - 1) * size, r * slowest) + 2 * (r - 1) * latency


@kernel
def transfer_ticks(layers, a, b, size):
    """Ticks of a transfer of `size` units between two different devices."""
    return layers.latency[a, b] + ticks_for(size, layers.bandwidth[a, b])


@kernel
def make_flows(layers, pairs, start, devices):
    """[P', 5] sender lane, receiver lane, is backward, ticks, route index (-1 inside a device), unsorted.

    Lane `start[s] + j` is replica j of stage s; lanes that share samples of a microbatch are connected. What takes no
    time occupies nothing: its route is the empty one from the source to itself.
    """
    count = 0
    for p in range(pairs.shape[0]):
        a, b = pairs[p, 0], pairs[p, 1]
        count += 2 * (start[a + 1] - start[a] + start[b + 1] - start[b])
    flows = np.zeros((count, 5), np.int64)
    num_devices = layers.capacity.shape[0]
    count = 0
    for p in range(pairs.shape[0]):
        a, b = pairs[p, 0], pairs[p, 1]
        ra, rb = start[a + 1] - start[a], start[b + 1] - start[b]
        i, j = 0, 0
        while i < ra and j < rb:
            share = min((i + 1) * rb, (j + 1) * ra) - max(i * rb, j * ra)
            x, y = start[a] + i, start[b] + j
            dx, dy = devices[x], devices[y]
            for way in range(2):
                if way == 1 and pairs[p, 4] == 0:
                    continue
                source, target = (dx, dy) if way == 0 else (dy, dx)
                flows[count, 0], flows[count, 1] = (x, y) if way == 0 else (y, x)
                flows[count, 2] = way
                flows[count, 4] = -1
                if source != target:
                    size = ceil_div(pairs[p, 2 + way] * share, ra * rb)
                    flows[count, 3] = transfer_ticks(layers, source, target, size)
                    flows[count, 4] = source * num_devices + (target if flows[count, 3] > 0 else source)
                count += 1
            if (i + 1) * rb <= (j + 1) * ra:
                i += 1
                if i * rb == (j + 1) * ra:
                    j += 1
            else:
                j += 1
    return flows[:count]


@kernel
def static_units(layers, pairs, sizes, start, devices):
    """[D] resident units: state and receive buffers."""
    static = np.zeros(layers.capacity.shape[0], np.int64)
    for s in range(sizes.shape[0]):
        for n in range(start[s], start[s + 1]):
            static[devices[n]] += sizes[s, 0]
    for p in range(pairs.shape[0]):
        for way in range(2):
            sender, receiver = (pairs[p, 0], pairs[p, 1]) if way == 0 else (pairs[p, 1], pairs[p, 0])
            alone = start[sender + 1] - start[sender] == 1
            r = start[receiver + 1] - start[receiver]
            for n in range(start[receiver], start[receiver + 1]):
                if not (alone and devices[start[sender]] == devices[n]):
                    static[devices[n]] += ceil_div(layers.options[BUFFERS] * pairs[p, 2 + way], r)
    return static


@kernel
def assemble(layers, stage_of, start, devices, recompute):
    """The Net of a partition (`stage_of` [L]) and a mapping: stage s runs on devices[start[s]:start[s + 1]]."""
    num_stages, num_lanes = start.shape[0] - 1, devices.shape[0]
    num_devices = layers.capacity.shape[0]
    replicas = start[1:] - start[:-1]
    times, sizes = stage_sums(layers, stage_of, start, devices, recompute)
    pairs = stage_traffic(layers, stage_of, num_stages)
    lane_stage = np.zeros(num_lanes, np.int64)
    lane_size = np.zeros((6, num_lanes), np.int64)
    duration = np.zeros((num_lanes, 4), np.int64)
    synchronisation = np.zeros(num_stages, np.int64)
    device_start = np.zeros(num_devices + 1, np.int64)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            lane_stage[n] = s
            device_start[devices[n] + 1] += 1
            duration[n] = times[s, layers.device_type[devices[n]]] + layers.overhead[layers.device_type[devices[n]]]
            for k in range(5):
                lane_size[k, n] = sizes[s, k + 1]
        if replicas[s] > 1 and sizes[s, 7] > 0:
            synchronisation[s] = ring_ticks(layers, sizes[s, 6], devices[start[s] : start[s + 1]])
    device_start = np.cumsum(device_start)
    fill = device_start[:-1].copy()
    device_lanes = np.zeros(num_lanes, np.int64)
    for n in range(num_lanes):
        device_lanes[fill[devices[n]]] = n
        fill[devices[n]] += 1
    flows = make_flows(layers, pairs, start, devices)
    budget = layers.capacity - static_units(layers, pairs, sizes, start, devices)
    return connect(
        layers, lane_stage, devices, duration, lane_size, device_start, device_lanes, budget, flows, synchronisation
    )


@kernel
def connect(
    layers, lane_stage, devices, duration, lane_size, device_start, device_lanes, budget, flows, synchronisation
):
    """Sort the flows by sender and direction and mark those that share a link with another."""
    num_lanes = lane_stage.shape[0]
    flow_start = np.zeros(2 * num_lanes + 1, np.int64)
    num_inputs, num_gradients = np.zeros(num_lanes, np.int64), np.zeros(num_lanes, np.int64)
    users = np.zeros(layers.options[LINKS], np.int64)
    for f in range(flows.shape[0]):
        flow_start[2 * flows[f, 0] + flows[f, 2] + 1] += 1
        if flows[f, 2] == 0:
            num_inputs[flows[f, 1]] += 1
        else:
            num_gradients[flows[f, 1]] += 1
        if flows[f, 4] >= 0:
            for k in range(layers.route_start[flows[f, 4]], layers.route_start[flows[f, 4] + 1]):
                users[layers.route_links[k]] += 1
    flow_start = np.cumsum(flow_start)
    fill = flow_start[:-1].copy()
    table = np.zeros((4, flows.shape[0]), np.int64)
    for f in range(flows.shape[0]):
        at = fill[2 * flows[f, 0] + flows[f, 2]]
        fill[2 * flows[f, 0] + flows[f, 2]] += 1
        table[0, at], table[1, at], table[2, at] = flows[f, 1], flows[f, 3], flows[f, 4]
        if flows[f, 4] >= 0:
            for k in range(layers.route_start[flows[f, 4]], layers.route_start[flows[f, 4] + 1]):
                if users[layers.route_links[k]] > 1:
                    table[3, at] = 1
    return Net(
        lane_stage, devices, duration, lane_size[4], lane_size[0], lane_size[1], lane_size[2], lane_size[3],
        device_start, device_lanes, budget, flow_start, table[0], table[1], table[2], table[3],
        num_inputs, num_gradients, layers.route_start, layers.route_links, synchronisation, layers.options,
    )  # fmt: skip


ARRIVAL, SEND = 4, 5
"""Codes of the events that are not the end of an action (whose code is its kind)."""

FIRST_SEND = 1 << 59
"""Keys from here on are of order 1: they come after everything else of the same time."""


@kernel
def event_key(order, stage, microbatch, way, index, code):
    """Everything that decides between events of the same time, and what the event is, in one integer."""
    return (((((order << 11 | stage) << 21 | microbatch) << 1 | way) << 23 | index) << 3) | code


@kernel
def heap_push(heap, size, time, key):
    """Insert (time, key) into the binary heap `heap` [capacity, 2] of `size` events."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent, 0] < time or (heap[parent, 0] == time and heap[parent, 1] <= key):
            break
        heap[at, 0], heap[at, 1] = heap[parent, 0], heap[parent, 1]
        at = parent
    heap[at, 0], heap[at, 1] = time, key


@kernel
def heap_pop(heap, size):
    """Remove the first of `size` events; the caller has read it at heap[0]."""
    time, key = heap[size - 1, 0], heap[size - 1, 1]
    last = size - 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        right = child + 1
        if right < last and (
            heap[right, 0] < heap[child, 0] or (heap[right, 0] == heap[child, 0] and heap[right, 1] < heap[child, 1])
        ):
            child = right
        if time < heap[child, 0] or (time == heap[child, 0] and key <= heap[child, 1]):
            break
        heap[at, 0], heap[at, 1] = heap[child, 0], heap[child, 1]
        at = child
    heap[at, 0], heap[at, 1] = time, key


@kernel
def next_in_word(count, missing, words, position, d):
    """The next action of the device's word if it can start now, else -1."""
    code = words[d, position[d]]
    n, kind = code >> 2, code & 3
    if kind == 0:
        return code if missing[n, 0, count[n, 0]] == 0 else -1
    if kind == 2:
        return code if count[n, 2] < count[n, 1] else -1
    m = count[n, 1]
    return code if m < count[n, 0] and missing[n, 1, m] == 0 else -1


@kernel
def forward_fits(lanes, budget, cap, count, held, k, last, total):
    """Whether there is room for one more F of lane k of a device, and for one F of each deeper lane that holds nothing.

    `lanes` [lanes by device, 6] holds index, stage, has W, held, stash, workspace; the device's end before `last`.
    """
    n = lanes[k, 0]
    if count[n, 0] - count[n, 1] >= cap[n]:
        return False
    need = lanes[k, 3]
    for x in range(k + 1, last):
        other = lanes[x, 0]
        if count[other, 0] == count[other, 1] and count[other, 0] < total:
            need += lanes[x, 3]
    return held + need + lanes[k, 5] <= budget


@kernel
def choose(lanes, first, last, budget, held, cap, lag, mode, total, can_split, count, missing):
    """The action (lane * 4 + kind) that the policy starts on an idle device, or -1 to wait.

    `lanes[first:last]` are those of the device, by stage (see `forward_fits`); budget, held, lag and mode are its own.
    """
    forward, backward, weight = -1, -1, -1
    forward_rank, backward_rank, pending = FAR, FAR, -1
    for k in range(first, last):
        n = lanes[k, 0]
        f, i, w = count[n, 0], count[n, 1], count[n, 2]
        deep = -lanes[k, 1]
        if lanes[k, 2] and i - w > max(pending, 0) and held + lanes[k, 5] <= budget:
            weight, pending = n * 4 + 2, i - w
        if i < f and missing[n, 1, i] == 0 and held + lanes[k, 4] - lanes[k, 3] + lanes[k, 5] <= budget:
            rank = deep if mode & DEPTH_FIRST else i * 4096 + deep
            if rank < backward_rank:
                fused = lanes[k, 2] and (mode & FUSE or not can_split)
                backward, backward_rank = n * 4 + (3 if fused else 1), rank
        if f < total and missing[n, 0, f] == 0:
            rank = deep if mode & DEPTH_FIRST else f * 4096 + deep
            if rank < forward_rank and forward_fits(lanes, budget, cap, count, held, k, last, total):
                forward, forward_rank = n * 4, rank
    if weight >= 0 and pending >= lag and (lag == 0 or backward < 0):
        return weight
    if mode & FORWARD_FIRST and forward >= 0:
        return forward
    if backward >= 0:
        return backward
    return forward if forward >= 0 else weight


@kernel
def lane_table(net):
    """[lanes by device, 6] index, stage, has W, held, stash, workspace: what `choose` reads, side by side."""
    table = np.empty((net.device_lanes.shape[0], 6), np.int64)
    for k in range(table.shape[0]):
        n = net.device_lanes[k]
        table[k, 0], table[k, 1], table[k, 2] = n, net.lane_stage[n], net.has_weight[n]
        table[k, 3], table[k, 4], table[k, 5] = net.held[n], net.stash[n], net.workspace[n]
    return table


@kernel
def send(net, n, way, m, now, heap, size, link_free, missing):
    """Let every flow of lane n in direction `way` go off for microbatch m; returns the new number of events."""
    for f in range(net.flow_start[2 * n + way], net.flow_start[2 * n + way + 1]):
        route, target = net.flow_route[f], net.flow_target[f]
        if route < 0:
            missing[target, way, m] -= 1
        elif net.flow_shared[f]:
            heap_push(heap, size, now, event_key(1, net.lane_stage[n], m, way, f, SEND))
            size += 1
        else:
            size = depart(net, f, way, m, now, heap, size, link_free)
    return size


@kernel
def depart(net, f, way, m, now, heap, size, link_free):
    """Put flow f on its links once they are free; returns the new number of events."""
    route = net.flow_route[f]
    begin = now
    for k in range(net.route_start[route], net.route_start[route + 1]):
        begin = max(begin, link_free[net.route_links[k]])
    end = begin + net.flow_duration[f]
    for k in range(net.route_start[route], net.route_start[route + 1]):
        link_free[net.route_links[k]] = end
    heap_push(heap, size, end, event_key(0, net.lane_stage[net.flow_target[f]], m, way, f, ARRIVAL))
    return size + 1


@kernel
def make_shares(net):
    """[N, 3] ticks of F, of the least backward work before the gradient leaves, and of the least after it."""
    shares = np.zeros((net.lane_stage.shape[0], 3), np.int64)
    for n in range(shares.shape[0]):
        shares[n, 0], shares[n, 1] = net.duration[n, 0], net.duration[n, 1]
        if net.has_weight[n]:
            fused = net.duration[n, 3]
            whole = min(net.duration[n, 1] + net.duration[n, 2], fused) if net.scalars[SPLIT] else fused
            shares[n, 1] = min(net.duration[n, 1], fused) if net.scalars[SPLIT] else fused
            shares[n, 2] = max(whole - shares[n, 1], 0)
    return shares


@kernel
def make_drains(net, shares):
    """[N] what follows every I of the lane: the chain of I upstream, with its own W and all-reduce at every step."""
    drain = np.zeros(net.lane_stage.shape[0], np.int64)
    for n in range(drain.shape[0]):
        drain[n] = shares[n, 2] + net.synchronisation[net.lane_stage[n]]
        for f in range(net.flow_start[2 * n + 1], net.flow_start[2 * n + 2]):
            target = net.flow_target[f]
            drain[n] = max(drain[n], net.flow_duration[f] + shares[target, 1] + drain[target])
    return drain


@kernel
def remaining_work(net, shares):
    """[D] ticks that a device needs from its start to the end of its least all-reduce."""
    left = np.zeros(net.budget.shape[0], np.int64)
    for d in range(left.shape[0]):
        least_end = FAR
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_lanes[k]
            left[d] += net.scalars[MICROBATCHES] * (shares[n, 0] + shares[n, 1] + shares[n, 2])
            least_end = min(least_end, net.synchronisation[net.lane_stage[n]])
        left[d] += least_end if least_end < FAR else 0
    return left


@kernel
def account(net, count, held, n, kind):
    """Count an action that starts now and book its memory as it stands after its end."""
    d = net.lane_device[n]
    if kind == 0:
        count[n, 0] += 1
        held[d] += net.held[n]
    elif kind == 1:
        count[n, 1] += 1
        held[d] += net.weight_stash[n] - net.held[n]
    elif kind == 2:
        count[n, 2] += 1
        held[d] -= net.weight_stash[n]
    else:
        count[n, 1] += 1
        count[n, 2] += 1
        held[d] -= net.held[n]


@kernel
def make_missing(net):
    """[N, 2, M] inputs and gradients that have yet to arrive."""
    missing = np.empty((net.lane_stage.shape[0], 2, net.scalars[MICROBATCHES]), np.int32)
    for n in range(missing.shape[0]):
        missing[n, 0, :] = net.num_inputs[n]
        missing[n, 1, :] = net.num_gradients[n]
    return missing


@kernel
def is_late(left, shares, drain, weight, n, d, kind, now, returns, limit):
    """Whether the end is certain to be at `limit` or later if the action starts now; takes it off the work `left` [D].

    `weight` [N] ticks of W; `returns` microbatches of the lane whose I has not started yet, this one included.
    """
    late = now + left[d] >= limit
    if kind == 0:
        left[d] -= shares[n, 0]
    elif kind == 2:
        left[d] -= weight[n]
    else:
        late = late or now + returns * shares[n, 1] + drain[n] >= limit
        left[d] -= shares[n, 1] + shares[n, 2] - (weight[n] if kind == 1 else 0)
    return late


@kernel
def play(net, policy, words, lengths, follow, threshold):
    """Run the net to its end: by the words if `follow`, else by the policy, which then writes the words.

    `words` [D, longest] holds lane * 4 + kind, `lengths` [D] how many. Returns (makespan, span, sum of the devices'
    last ends); FAR for all three if the game deadlocks, and some time from `threshold` on as soon as the makespan is
    certain to be no less. Memory is respected by policies, not checked for given words.
    One long function on purpose: handing the net to helpers per event costs three times the work itself.
    """
    num_lanes, num_devices, total = net.lane_stage.shape[0], net.budget.shape[0], net.scalars[MICROBATCHES]
    count = np.zeros((num_lanes, 3), np.int64)  # F, I (or B), W (or B) started
    missing = make_missing(net)
    heap, size = np.empty((net.flow_target.shape[0] * total + num_devices + 1, 2), np.int64), 0
    link_free, stage_end = np.zeros(net.scalars[LINKS], np.int64), np.zeros(net.synchronisation.shape[0], np.int64)
    held, position = np.zeros(num_devices, np.int64), np.zeros(num_devices, np.int64)
    busy, first, last = np.zeros(num_devices, np.bool_), np.full(num_devices, -1), np.zeros(num_devices, np.int64)
    dirty, is_dirty, num_dirty = np.arange(num_devices), np.ones(num_devices, np.bool_), num_devices
    lanes, device_start, budget, can_split = lane_table(net), net.device_start, net.budget, net.scalars[SPLIT]
    cap, lag, mode = policy.cap, policy.lag, policy.mode
    if not follow:
        lengths[:] = 0
    shares, weight, limit = make_shares(net), net.duration[:, 2] * net.has_weight, threshold - net.scalars[TAIL]
    left, drain = remaining_work(net, shares), make_drains(net, shares)
    now = np.int64(0)
    while True:
        for x in range(num_dirty):
            d = dirty[x]
            is_dirty[d] = False
            if busy[d] or (follow and position[d] >= lengths[d]):
                continue
            if follow:
                code = next_in_word(count, missing, words, position, d)
            else:
                code = choose(
                    lanes, device_start[d], device_start[d + 1], budget[d], held[d], cap, lag[d], mode[d], total,
                    can_split, count, missing,
                )  # fmt: skip
            if code < 0:
                continue
            n, kind = code >> 2, code & 3
            m = count[n, 0] if kind == 0 else (count[n, 2] if kind == 2 else count[n, 1])
            if is_late(left, shares, drain, weight, n, d, kind, now, total - m, limit):
                return threshold, threshold, threshold
            account(net, count, held, n, kind)
            if not follow:
                words[d, position[d]] = code
                lengths[d] += 1
            position[d] += 1
            busy[d] = True
            first[d] = now if first[d] < 0 else first[d]
            heap_push(heap, size, now + net.duration[n, kind], event_key(0, net.lane_stage[n], m, 0, n, kind))
            size += 1
        num_dirty = 0
        if size == 0:
            break
        now = heap[0, 0]
        while size > 0 and heap[0, 0] == now and (num_dirty == 0 or heap[0, 1] < FIRST_SEND):
            key = heap[0, 1]
            heap_pop(heap, size)
            size -= 1
            code, index = key & 7, (key >> 3) & 0x7FFFFF
            way, m = (key >> 26) & 1, (key >> 27) & 0x1FFFFF
            if code == SEND:
                size = depart(net, index, way, m, now, heap, size, link_free)
                continue
            if code == ARRIVAL:
                n = net.flow_target[index]
                missing[n, way, m] -= 1
            else:
                n = index
                busy[net.lane_device[n]] = False
                last[net.lane_device[n]] = now
                stage_end[net.lane_stage[n]] = now
                if code != 2:
                    size = send(net, n, 0 if code == 0 else 1, m, now, heap, size, link_free, missing)
            d = net.lane_device[n]
            if not is_dirty[d]:
                is_dirty[d] = True
                dirty[num_dirty] = d
                num_dirty += 1
    if np.any(count[:, :2] < total) or np.any(count[:, 2] < total * net.has_weight):
        return FAR, FAR, FAR
    makespan = np.max(stage_end + net.synchronisation) + net.scalars[TAIL]
    return makespan, np.max(last - first * (first >= 0)), np.sum(last)


@kernel
def peak_excess(net, words, lengths):
    """Largest number of units by which a device exceeds its budget when it runs its word; 0 if none does."""
    worst = np.int64(0)
    for d in range(net.budget.shape[0]):
        held = np.int64(0)
        for x in range(lengths[d]):
            n, kind = words[d, x] >> 2, words[d, x] & 3
            peak = net.workspace[n]
            if kind == 0:
                held += net.held[n]
                peak += held
            elif kind == 2:
                peak += held
                held -= net.weight_stash[n]
            else:
                peak += held + net.stash[n] - net.held[n]
                held += (net.weight_stash[n] if kind == 1 else 0) - net.held[n]
            worst = max(worst, peak - net.budget[d])
        worst = max(worst, -net.budget[d] if net.device_start[d + 1] > net.device_start[d] else 0)
    return worst
