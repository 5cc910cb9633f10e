"""Split placement in the joint search: W, or half of every I, of a stage on another device than its F.

What is elsewhere becomes a lane of its own, so that everything that plays and improves nets works on it: its F, and the
I of a W, take no time and only mark that what it needs has arrived. Each layer carries two preferences, the device of
its W and that of the second half of its I (-1: at home); a stage follows the preferences of its first layer that can
have them, so that preferences survive every other step of the search. Weights that travel once count as a part of every
stash.
"""

import numpy as np

from solver_models.annealing import PENALTY, longest_word, make_policy, overflow, shortage
from solver_models.columns import (
    CUT,
    FORWARD_SIZE,
    GRADIENT,
    HAS_GRADIENT,
    HAS_WEIGHT,
    HELD,
    NUM_TRAINED,
    RECEIVER,
    ROUTE,
    SENDER,
    SOURCE,
    STASH,
    STATED,
    TARGET,
    TICKS,
    WAY,
    WEIGHT_STASH,
    WEIGHT_WORKSPACE,
    WORKSPACE,
)
from solver_models.compiled import kernel
from solver_models.evaluator import (
    BUFFERS,
    FAR,
    MICROBATCHES,
    ceil_div,
    connect,
    play,
    ring_ticks,
    stage_sums,
    stage_traffic,
    static_units,
    transfer_ticks,
)
from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD
from solver_models.neighbourhood import HALVES, is_allowed, neighbour

HALF, WEIGHT = 1, 2
"""Roles of the lanes beside those of the stages: the second half of I, and W."""

HOME, ROLE = 0, 1
"""Columns of those lanes: the stage that they work for, and their role."""

WEIGHT_PLACE, HALF_PLACE = 0, 1
"""Rows of places and preferences: devices of W, and of the second half of I."""

SINGLE = 0
"""Row of the width 1."""

WISH_SHARE = 0.35
"""How often a step changes a wish rather than partition, mapping or policy."""


@kernel
def places(layers, stage_of, start, devices, recompute, preferences):
    """[2, S] devices of W, and of the second half of I; -1 where they are with F."""
    found = np.full((2, start.shape[0] - 1), -1, np.int64)
    is_open = np.ones(found.shape, np.bool_)
    for x in range(stage_of.shape[0]):
        s = stage_of[x]
        if start[s + 1] - start[s] != 1 or recompute[s]:
            continue
        for way in range(2):
            if is_open[way, s] and (way == 1 or layers.trainable[x]):
                is_open[way, s] = False
                found[way, s] = preferences[way, x] if preferences[way, x] != devices[start[s]] else -1
    return found


@kernel
def list_lanes(sizes, at):
    """[E, 2] home stage and role of the lanes beside those of the stages."""
    found = np.zeros((2 * at.shape[1], 2), np.int64)
    count = 0
    for s in range(at.shape[1]):
        if at[HALF_PLACE, s] >= 0:
            found[count] = s, HALF
            count += 1
        if sizes[s, HAS_WEIGHT] and (at[WEIGHT_PLACE, s] >= 0 or at[HALF_PLACE, s] >= 0):
            found[count] = s, WEIGHT
            count += 1
    return found[:count]


@kernel
def work_on(layers, stage_of, s, kind, device):
    """Ticks of a kind of action of an unreplicated stage on any device."""
    total, table = 0, layers.table_of_replicas[1]
    for x in range(stage_of.shape[0]):
        if stage_of[x] == s:
            total += layers.work[table, kind, layers.device_type[device], x]
    return total


@kernel
def add_flow(layers, flows, count, sender, receiver, way, ends, size, more):
    """One more row of [sender lane, receiver lane, is backward, ticks, route]; `ends` are their devices."""
    a, b = ends
    flows[count, SENDER], flows[count, RECEIVER], flows[count, WAY], flows[count, ROUTE] = sender, receiver, way, -1
    if a != b:
        flows[count, TICKS] = transfer_ticks(layers, a, b, size) + more
        flows[count, ROUTE] = a * layers.capacity.shape[0] + (b if flows[count, TICKS] > 0 else a)
    return count + 1


@kernel
def stage_flows(layers, flows, pairs, start, holders, half_lane):
    """Activations between replicas, gradients between whoever runs I for the same samples; returns their number."""
    count = 0
    for p in range(pairs.shape[0]):
        for way in range(1 + pairs[p, HAS_GRADIENT]):
            a, b = (pairs[p, SOURCE], pairs[p, TARGET]) if way == 0 else (pairs[p, TARGET], pairs[p, SOURCE])
            ra, rb = start[a + 1] - start[a], start[b + 1] - start[b]
            if way == 1:
                ra, rb = ra + (half_lane[a] >= 0), rb + (half_lane[b] >= 0)
            for i in range(ra):
                x = half_lane[a] if way == 1 and i == 1 and half_lane[a] >= 0 else start[a] + i
                for j in range(rb):
                    share = min((i + 1) * rb, (j + 1) * ra) - max(i * rb, j * ra)
                    if share > 0:
                        y = half_lane[b] if way == 1 and j == 1 and half_lane[b] >= 0 else start[b] + j
                        size = ceil_div(pairs[p, FORWARD_SIZE + way] * share, ra * rb)
                        ends = (holders[x], holders[y])
                        count = add_flow(layers, flows, count, x, y, way, ends, size, 0)
    return count


@kernel
def stage_bytes(layers, stage_of, s):
    """Gradient units of an unreplicated stage on single devices, which are those of its weights."""
    total = 0
    for x in range(stage_of.shape[0]):
        if stage_of[x] == s:
            total += layers.gradient[SINGLE, STATED, x] + layers.gradient[SINGLE, CUT, x]
    return total


@kernel
def add_lanes(layers, stage_of, start, devices, at, extra, sizes, lanes):
    """Write the lanes beside those of the stages into `lanes`; their homes give up what they do no more."""
    lane_stage, holders, lane_size, duration, synchronisation, half_lane, budget = lanes
    num_stages, num_own = start.shape[0] - 1, devices.shape[0]
    overhead = layers.overhead[layers.device_type]
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own = start[s]
        lane_stage[n], lane_size[WORKSPACE, n] = num_stages + e, sizes[s, WORKSPACE]
        lane_size[WEIGHT_STASH, own], lane_size[HAS_WEIGHT, own] = 0, 0
        if extra[e, ROLE] == HALF:
            holders[n], half_lane[s] = at[HALF_PLACE, s], n
            duration[n, INPUT_GRAD] = (
                ceil_div(work_on(layers, stage_of, s, INPUT_GRAD, at[HALF_PLACE, s]), 2)
                + overhead[at[HALF_PLACE, s], INPUT_GRAD]
            )
            duration[own, INPUT_GRAD] = (
                ceil_div(duration[own, INPUT_GRAD] - overhead[devices[own], INPUT_GRAD], 2)
                + overhead[devices[own], INPUT_GRAD]
            )
            duration[n, BACKWARD], duration[own, BACKWARD] = duration[n, INPUT_GRAD], duration[own, INPUT_GRAD]
            lane_size[STASH, n] = ceil_div(sizes[s, STASH], 2)
            budget[at[HALF_PLACE, s]] -= (
                stage_bytes(layers, stage_of, s) + layers.options[BUFFERS] * lane_size[STASH, n]
            )
        else:
            holders[n] = at[WEIGHT_PLACE, s] if at[WEIGHT_PLACE, s] >= 0 else devices[own]
            duration[n, WEIGHT_GRAD] = (
                work_on(layers, stage_of, s, WEIGHT_GRAD, holders[n]) + overhead[holders[n], WEIGHT_GRAD]
            )
            duration[n, BACKWARD], lane_size[HAS_WEIGHT, n] = duration[n, WEIGHT_GRAD], 1
            received = sizes[s, WEIGHT_STASH] if at[WEIGHT_PLACE, s] >= 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            lane_size[WORKSPACE, n] += received
            lane_size[WEIGHT_WORKSPACE, n] = lane_size[WORKSPACE, n]
            lane_size[WEIGHT_STASH, n] = 0 if at[WEIGHT_PLACE, s] >= 0 else sizes[s, WEIGHT_STASH] - received
            budget[holders[n]] -= layers.options[BUFFERS] * received
            if at[WEIGHT_PLACE, s] >= 0:
                size = stage_bytes(layers, stage_of, s)
                budget[at[WEIGHT_PLACE, s]] -= size
                synchronisation[num_stages + e] = transfer_ticks(layers, at[WEIGHT_PLACE, s], devices[own], size)


@kernel
def part_flows(layers, stage_of, flows, count, start, holders, extra, sizes, half_lane):
    """Stashes from F to half an I, weight stashes from every I to W; returns the number of flows."""
    num_own, total = holders.shape[0] - extra.shape[0], layers.options[MICROBATCHES]
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own, half = start[s], half_lane[s]
        if extra[e, ROLE] == HALF:
            weights = transfer_ticks(layers, holders[own], holders[n], stage_bytes(layers, stage_of, s))
            ends, size = (holders[own], holders[n]), ceil_div(sizes[s, STASH], 2)
            count = add_flow(layers, flows, count, own, n, 0, ends, size, ceil_div(weights, total))
        else:
            size = sizes[s, WEIGHT_STASH] if half < 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            count = add_flow(layers, flows, count, own, n, 1, (holders[own], holders[n]), size, 0)
            if half >= 0:
                count = add_flow(layers, flows, count, half, n, 1, (holders[half], holders[n]), size, 0)
    return count


@kernel
def by_device(holders, num_devices):
    """[D + 1] where the lanes of a device begin, and the lanes in that order."""
    num_lanes = holders.shape[0]
    device_start = np.zeros(num_devices + 1, np.int64)
    for n in range(num_lanes):
        device_start[holders[n] + 1] += 1
    device_start = np.cumsum(device_start)
    fill = device_start[:-1].copy()
    device_lanes = np.zeros(num_lanes, np.int64)
    for n in range(num_lanes):
        device_lanes[fill[holders[n]]] = n
        fill[holders[n]] += 1
    return device_start, device_lanes


@kernel
def assemble_apart(layers, stage_of, start, devices, at, extra, times, sizes):
    """The Net of a candidate whose stages have W and halves of I `at` [2, S]; `extra` as `list_lanes` gives it."""
    num_stages, num_own, num_devices = start.shape[0] - 1, devices.shape[0], layers.capacity.shape[0]
    pairs = stage_traffic(layers, stage_of, num_stages)
    num_lanes = num_own + extra.shape[0]
    lane_stage, holders = np.zeros(num_lanes, np.int64), np.zeros(num_lanes, np.int64)
    lane_size, duration = np.zeros((HAS_WEIGHT + 1, num_lanes), np.int64), np.zeros((num_lanes, 4), np.int64)
    synchronisation = np.zeros(num_stages + extra.shape[0], np.int64)
    half_lane = np.full(num_stages, -1, np.int64)
    room = 4 * extra.shape[0]
    for p in range(pairs.shape[0]):
        a, b = pairs[p, SOURCE], pairs[p, TARGET]
        room += 2 * (start[a + 1] - start[a] + 1) * (start[b + 1] - start[b] + 1)
    flows = np.zeros((room, ROUTE + 1), np.int64)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            lane_stage[n], holders[n] = s, devices[n]
            duration[n] = times[s, layers.device_type[devices[n]]] + layers.overhead[layers.device_type[devices[n]]]
            for k in range(HELD, HAS_WEIGHT + 1):
                lane_size[k, n] = sizes[s, k]
        if start[s + 1] - start[s] > 1 and sizes[s, NUM_TRAINED] > 0:
            synchronisation[s] = ring_ticks(layers, sizes[s, GRADIENT], devices[start[s] : start[s + 1]])
    budget = layers.capacity - static_units(layers, pairs, sizes, start, devices)
    lanes = (lane_stage, holders, lane_size, duration, synchronisation, half_lane, budget)
    add_lanes(layers, stage_of, start, devices, at, extra, sizes, lanes)
    count = stage_flows(layers, flows, pairs, start, holders, half_lane)
    count = part_flows(layers, stage_of, flows, count, start, holders, extra, sizes, half_lane)
    device_start, device_lanes = by_device(holders, num_devices)
    return connect(
        layers, lane_stage, holders, duration, lane_size, device_start, device_lanes, budget, flows[:count],
        synchronisation,
    )  # fmt: skip


@kernel
def net_apart(layers, stage_of, start, devices, recompute, preferences):
    """The Net of a candidate with preferences, and the [E, 2] lanes beside those of the stages."""
    at = places(layers, stage_of, start, devices, recompute, preferences)
    times, sizes = stage_sums(layers, stage_of, start, devices, recompute)
    extra = list_lanes(sizes, at)
    return assemble_apart(layers, stage_of, start, devices, at, extra, times, sizes), extra


@kernel
def evaluate_apart(layers, stage_of, start, devices, recompute, preferences, policy_params, threshold, by_span):
    """(objective, sum of last ends) as `annealing.evaluate` has it."""
    net, _ = net_apart(layers, stage_of, start, devices, recompute, preferences)
    if overflow(net) > 0:
        return 2 * PENALTY + shortage(net), PENALTY
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    policy = make_policy(net, policy_params, start.shape[0] - 1)
    makespan, span, total = play(net, policy, words, lengths, False, FAR if by_span else threshold, None)
    if makespan == FAR:
        return PENALTY + shortage(net), PENALTY
    return (span if by_span else makespan), total


@kernel
def redraw_preference(stage_of, num_stages, num_devices, preferences, can_halve):
    """W, or half of I where it can be halved, of a random stage to a random device or home; or all of a stage home."""
    s, target, draw = np.random.randint(num_stages), np.random.randint(num_devices), np.random.random()
    if np.random.random() < 0.25:
        target = -1
    result = preferences.copy()
    for x in range(stage_of.shape[0]):
        if stage_of[x] == s:
            if draw < 0.65 or (draw < 0.95 and not can_halve):
                result[WEIGHT_PLACE, x] = target
            elif draw < 0.95:
                result[HALF_PLACE, x] = target
            else:
                result[WEIGHT_PLACE, x], result[HALF_PLACE, x] = -1, -1
    return result


@kernel
def anneal_apart(
    layers,
    rules,
    pinned,
    stage_of,
    start,
    devices,
    recompute,
    preferences,
    policy_params,
    iterations,
    heat,
    seed,
    by_span,
):
    """`annealing.anneal` with preferences: the best candidate, its preferences, its policy and its objective."""
    np.random.seed(seed)
    num_devices = layers.capacity.shape[0]
    value, total = evaluate_apart(layers, stage_of, start, devices, recompute, preferences, policy_params, FAR, by_span)
    best, best_value = (stage_of, start, devices, recompute, preferences, policy_params), value
    for step in range(iterations):
        temperature = heat[0] * (heat[1] / heat[0]) ** (step / iterations)
        allowance = np.int64(-np.log(1 - np.random.random()) * temperature * (value % PENALTY))
        a, b, c, d, e, f = stage_of, start, devices, recompute, preferences, policy_params
        if np.random.random() < WISH_SHARE:
            e = redraw_preference(stage_of, start.shape[0] - 1, num_devices, preferences, rules[HALVES])
        else:
            a, b, c, d, f = neighbour(layers, rules, stage_of, start, devices, recompute, policy_params)
            if not is_allowed(layers, rules, pinned, a, b, c):
                continue
        threshold = value + allowance + 1
        new_value, new_total = evaluate_apart(layers, a, b, c, d, e, f, threshold, by_span)
        if new_value < value + allowance or (new_value == value and new_total <= total):
            stage_of, start, devices, recompute, preferences, policy_params = a, b, c, d, e, f
            value, total = new_value, new_total
            if value < best_value:
                best, best_value = (stage_of, start, devices, recompute, preferences, policy_params), value
    return best[0], best[1], best[2], best[3], best[4], best[5], best_value
