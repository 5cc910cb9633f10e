"""Split placement in the joint search: W, or half of every I, of a stage on another device than its F.

What is elsewhere becomes a lane of its own, so that everything that plays and improves nets works on it: its F, and the
I of a W, take no time and only mark that what it needs has arrived. Each layer carries two preferences, the device of
its W and that of the second half of its I (-1: at home); a stage follows the preferences of its first layer that can
have them, so that preferences survive every other step of the search. Weights that travel once count as a part of every
stash.
"""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, Integers
from solver_models.moves.annealing import (
    OVERFLOWS,
    Cooling,
    Worth,
    draw_allowance,
    is_better,
    is_taken,
    lacking,
    overflow,
    rate_policy,
    temperature,
    threshold_of,
)
from solver_models.moves.neighbourhood import HALVES, Solution, is_allowed, neighbour
from solver_models.simulation.columns import (
    CUT,
    FORWARD_SIZE,
    HAS_GRADIENT,
    HAS_WEIGHT,
    RECEIVER,
    RECOMPUTING,
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
    WHOLE_BACKWARD,
    WORKSPACE,
)
from solver_models.simulation.evaluator import (
    BUFFERS,
    FAR,
    MICROBATCHES,
    Layers,
    Net,
    NetLanes,
    ceil_div,
    connect,
    make_lanes,
    stage_sums,
    stage_traffic,
    static_units,
    transfer_ticks,
)

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
def places(layers: Layers, solution: Solution, preferences: Integers) -> Integers:
    """[2, S] devices of W, and of the second half of I; -1 where they are with F."""
    stage_of, start, devices, modes, _ = solution
    found = np.full((2, start.shape[0] - 1), -1, np.int64)
    is_open = np.ones(found.shape, np.bool_)
    for x in range(stage_of.shape[0]):
        s = stage_of[x]
        if start[s + 1] - start[s] != 1 or modes[s] & RECOMPUTING:
            continue
        for way in range(2):
            if is_open[way, s] and (way == 1 or layers.trainable[x]):
                is_open[way, s] = False
                found[way, s] = preferences[way, x] if preferences[way, x] != devices[start[s]] else -1
    return found


@kernel
def _list_lanes(sizes: Integers, at: Integers) -> Integers:
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
def _work_on(layers: Layers, stage_of: Integers, s: int, kind: int, device: int) -> int:
    """Ticks of a kind of action of an unreplicated stage on any device."""
    total, table = 0, layers.table_of_replicas[1]
    for x in range(stage_of.shape[0]):
        if stage_of[x] == s:
            total += layers.work[table, kind, layers.device_type[device], x]
    return total


@kernel
def _half_lanes(extra: Integers, num_own: int, num_stages: int) -> Integers:
    """[S] the lane that runs the second half of a stage's I, or -1; `extra` as `_list_lanes` gives it."""
    half_lane = np.full(num_stages, -1, np.int64)
    for e in range(extra.shape[0]):
        if extra[e, ROLE] == HALF:
            half_lane[extra[e, HOME]] = num_own + e
    return half_lane


@kernel
def _ticks_between(layers: Layers, source: int, target: int, size: int) -> int:
    """Ticks of a transfer of `size` units between two devices, which may be the same."""
    return transfer_ticks(layers, source, target, size) if source != target else int64(0)


@kernel
def _write_flow(
    layers: Layers, device: Integers, flow: Integers, sender: int, receiver: int, way: int, ticks: int
) -> None:
    """Fill a flow [sender lane, receiver lane, is backward, ticks, route]; `device` [N] is that of a lane."""
    a, b = device[sender], device[receiver]
    flow[SENDER], flow[RECEIVER], flow[WAY], flow[TICKS], flow[ROUTE] = sender, receiver, way, ticks, -1
    if a != b:
        flow[ROUTE] = a * layers.capacity.shape[0] + (b if ticks > 0 else a)


@kernel
def _stage_flows(
    layers: Layers, flows: Integers, pairs: Integers, start: Integers, device: Integers, half_lane: Integers
) -> int:
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
                        ticks = _ticks_between(layers, device[x], device[y], size)
                        _write_flow(layers, device, flows[count], x, y, way, ticks)
                        count += 1
    return count


@kernel
def stage_bytes(layers: Layers, stage_of: Integers, s: int) -> int:
    """Gradient units of an unreplicated stage on single devices, which are those of its weights."""
    total = 0
    for x in range(stage_of.shape[0]):
        if stage_of[x] == s:
            total += layers.gradient[SINGLE, STATED, x] + layers.gradient[SINGLE, CUT, x]
    return total


@kernel
def _add_lanes(
    layers: Layers, solution: Solution, at: Integers, extra: Integers, sizes: Integers, lanes: NetLanes
) -> None:
    """Write the lanes beside those of the stages into `lanes`; their homes give up what they do no more."""
    stage_of, start, devices, _, _ = solution
    num_stages, num_own = start.shape[0] - 1, devices.shape[0]
    duration, size, budget = lanes.duration, lanes.size, lanes.budget
    overhead = layers.overhead[layers.device_type]
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own = start[s]
        lanes.stage[n], size[WORKSPACE, n] = num_stages + e, sizes[s, WORKSPACE]
        size[WEIGHT_STASH, own], size[HAS_WEIGHT, own] = 0, 0
        if extra[e, ROLE] == HALF:
            lanes.device[n] = at[HALF_PLACE, s]
            duration[n, INPUT_GRAD] = (
                ceil_div(_work_on(layers, stage_of, s, INPUT_GRAD, at[HALF_PLACE, s]), 2)
                + overhead[at[HALF_PLACE, s], INPUT_GRAD]
            )
            duration[own, INPUT_GRAD] = (
                ceil_div(duration[own, INPUT_GRAD] - overhead[devices[own], INPUT_GRAD], 2)
                + overhead[devices[own], INPUT_GRAD]
            )
            duration[n, BACKWARD], duration[own, BACKWARD] = duration[n, INPUT_GRAD], duration[own, INPUT_GRAD]
            size[STASH, n] = size[WHOLE_BACKWARD, n] = ceil_div(sizes[s, STASH], 2)
            budget[at[HALF_PLACE, s]] -= stage_bytes(layers, stage_of, s) + layers.options[BUFFERS] * size[STASH, n]
        else:
            device = at[WEIGHT_PLACE, s] if at[WEIGHT_PLACE, s] >= 0 else devices[own]
            lanes.device[n] = device
            duration[n, WEIGHT_GRAD] = (
                _work_on(layers, stage_of, s, WEIGHT_GRAD, device) + overhead[device, WEIGHT_GRAD]
            )
            duration[n, BACKWARD], size[HAS_WEIGHT, n] = duration[n, WEIGHT_GRAD], 1
            received = sizes[s, WEIGHT_STASH] if at[WEIGHT_PLACE, s] >= 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            size[WORKSPACE, n] += received
            size[WEIGHT_WORKSPACE, n] = size[WORKSPACE, n]
            size[WEIGHT_STASH, n] = 0 if at[WEIGHT_PLACE, s] >= 0 else sizes[s, WEIGHT_STASH] - received
            budget[device] -= layers.options[BUFFERS] * received
            if at[WEIGHT_PLACE, s] >= 0:
                weights = stage_bytes(layers, stage_of, s)
                budget[device] -= weights
                lanes.synchronisation[num_stages + e] = transfer_ticks(layers, device, devices[own], weights)


@kernel
def _part_flows(
    layers: Layers,
    solution: Solution,
    flows: Integers,
    device: Integers,
    extra: Integers,
    sizes: Integers,
    half_lane: Integers,
) -> int:
    """Stashes from F to half an I, weight stashes from every I to W; returns the number of flows."""
    num_own, total, count = device.shape[0] - extra.shape[0], layers.options[MICROBATCHES], 0
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own, half = solution.start[s], half_lane[s]
        if extra[e, ROLE] == HALF:
            weights = transfer_ticks(layers, device[own], device[n], stage_bytes(layers, solution.stage_of, s))
            ticks = _ticks_between(layers, device[own], device[n], ceil_div(sizes[s, STASH], 2))
            _write_flow(layers, device, flows[count], own, n, 0, ticks + ceil_div(weights, total))
            count += 1
        else:
            size = sizes[s, WEIGHT_STASH] if half < 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            _write_flow(layers, device, flows[count], own, n, 1, _ticks_between(layers, device[own], device[n], size))
            count += 1
            if half >= 0:
                ticks = _ticks_between(layers, device[half], device[n], size)
                _write_flow(layers, device, flows[count], half, n, 1, ticks)
                count += 1
    return count


@kernel
def _most_flows(pairs: Integers, start: Integers, extra: Integers) -> int:
    """Room for the flows between stages whose parts may be elsewhere."""
    room = 4 * extra.shape[0]
    for p in range(pairs.shape[0]):
        a, b = pairs[p, SOURCE], pairs[p, TARGET]
        room += 2 * (start[a + 1] - start[a] + 1) * (start[b + 1] - start[b] + 1)
    return room


@kernel
def _assemble_apart(
    layers: Layers, solution: Solution, at: Integers, extra: Integers, times: Integers, sizes: Integers
) -> Net:
    """The Net of a solution whose stages have W and halves of I `at` [2, S]; `extra` as `_list_lanes` gives it."""
    stage_of, start, devices, _, _ = solution
    num_stages = start.shape[0] - 1
    pairs = stage_traffic(layers, stage_of, num_stages)
    budget = layers.capacity - static_units(layers, pairs, sizes, start, devices)
    lanes = make_lanes(layers, start, devices, times, sizes, budget, extra.shape[0])
    _add_lanes(layers, solution, at, extra, sizes, lanes)
    half_lane = _half_lanes(extra, devices.shape[0], num_stages)
    flows = np.zeros((_most_flows(pairs, start, extra), ROUTE + 1), np.int64)
    count = _stage_flows(layers, flows, pairs, start, lanes.device, half_lane)
    count += _part_flows(layers, solution, flows[count:], lanes.device, extra, sizes, half_lane)
    return connect(layers, lanes, flows[:count])


@kernel
def net_apart(layers: Layers, solution: Solution, preferences: Integers) -> tuple[Net, Integers]:
    """The Net of a solution with preferences, and the [E, 2] lanes beside those of the stages."""
    at = places(layers, solution, preferences)
    times, sizes = stage_sums(layers, solution.stage_of, solution.start, solution.devices, solution.modes)
    extra = _list_lanes(sizes, at)
    return _assemble_apart(layers, solution, at, extra, times, sizes), extra


@kernel
def _evaluate_apart(layers: Layers, solution: Solution, preferences: Integers, threshold: int, by_span: bool) -> Worth:
    """The worth of a solution with preferences, as `annealing.evaluate` has it."""
    net, _ = net_apart(layers, solution, preferences)
    if overflow(net) > 0:
        return lacking(OVERFLOWS, net)
    return rate_policy(net, solution.policy_params, solution.modes.shape[0], threshold, by_span)


@kernel
def _redraw_preference(
    stage_of: Integers, num_stages: int, num_devices: int, preferences: Integers, can_halve: int
) -> Integers:
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
    layers: Layers,
    rules: Integers,
    pinned: Integers,
    solution: Solution,
    preferences: Integers,
    cooling: Cooling,
    by_span: bool,
) -> tuple[Solution, Integers, Worth]:
    """`annealing.anneal` with preferences: the best solution, its preferences and its worth."""
    np.random.seed(cooling.seed)
    num_devices = layers.capacity.shape[0]
    worth = _evaluate_apart(layers, solution, preferences, FAR, by_span)
    best, best_preferences, best_worth = solution, preferences, worth
    for step in range(cooling.steps):
        allowance = draw_allowance(worth, temperature(cooling, step))
        new, wishes = solution, preferences
        if np.random.random() < WISH_SHARE:
            num_stages = solution.start.shape[0] - 1
            wishes = _redraw_preference(solution.stage_of, num_stages, num_devices, preferences, rules[HALVES])
        else:
            new = neighbour(layers, rules, solution)
            if not is_allowed(layers, rules, pinned, new.stage_of, new.start, new.devices):
                continue
        found = _evaluate_apart(layers, new, wishes, threshold_of(worth, allowance), by_span)
        if is_taken(found, worth, allowance):
            solution, preferences, worth = new, wishes, found
            if is_better(worth, best_worth):
                best, best_preferences, best_worth = solution, preferences, worth
    return best, best_preferences, best_worth
