"""Split placement in the joint search: W, or half of every I, of a stage on another device than its F.

What is elsewhere becomes a stage replica of its own, so that everything that plays and improves nets works on it: its
F, and the I of a W, take no time and only mark that what it needs has arrived. Each layer carries two preferences, the
device of its W and that of the second half of its I (-1: at home); a stage follows the preferences of its first layer
that can have them, so that preferences survive every other step of the search. Weights that travel once count as a part
of every stash.
"""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import KIND, MEMORY, placed
from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, Layers
from solver_models.moves.annealing import (
    OVERFLOWS,
    Cooling,
    Objective,
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
    DIRECTION,
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
    WEIGHT_STASH,
    WEIGHT_WORKSPACE,
    WHOLE_BACKWARD,
    WORKSPACE,
)
from solver_models.simulation.evaluator import (
    BUFFERS,
    FAR,
    MICROBATCHES,
    Net,
    NetReplicas,
    ceil_div,
    connect,
    make_replicas,
    stage_sums,
    stage_traffic,
    static_units,
    transfer_ticks,
)

HALF, WEIGHT = 1, 2
"""Roles of the stage replicas beside those of the stages: the second half of I, and W."""

HOME, ROLE = 0, 1
"""Columns of those stage replicas: the stage that they work for, and their role."""

WEIGHT_PLACE, HALF_PLACE = 0, 1
"""Rows of places and preferences: devices of W, and of the second half of I."""

SINGLE = 0
"""Row of the width 1."""

PREFERENCE_SHARE = 0.35
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
        for direction in range(2):
            if is_open[direction, s] and (direction == 1 or layers.trainable[x]):
                is_open[direction, s] = False
                found[direction, s] = (
                    preferences[direction, x] if preferences[direction, x] != devices[start[s]] else -1
                )
    return found


@kernel
def _list_replicas(sizes: Integers, at: Integers) -> Integers:
    """[E, 2] home stage and role of the stage replicas beside those of the stages."""
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
            total += layers.work[table, kind, layers.devices[device, KIND], x]
    return total


@kernel
def _half_replicas(extra: Integers, num_own: int, num_stages: int) -> Integers:
    """[S] the stage replica that runs the second half of a stage's I, or -1; `extra` as `_list_replicas` gives it."""
    half_replica = np.full(num_stages, -1, np.int64)
    for e in range(extra.shape[0]):
        if extra[e, ROLE] == HALF:
            half_replica[extra[e, HOME]] = num_own + e
    return half_replica


@kernel
def _ticks_between(layers: Layers, source: int, target: int, size: int) -> int:
    """Ticks of a transfer of `size` units between two devices, which may be the same."""
    return transfer_ticks(layers, source, target, size) if source != target else int64(0)


@kernel
def _write_transfer(
    layers: Layers, device: Integers, transfer: Integers, sender: int, receiver: int, direction: int, ticks: int
) -> None:
    """Fill a transfer [sender stage replica, receiver stage replica, is backward, ticks, route]; `device` [N] is that
    of a stage replica.
    """
    a, b = device[sender], device[receiver]
    transfer[SENDER], transfer[RECEIVER], transfer[DIRECTION], transfer[TICKS], transfer[ROUTE] = (
        sender,
        receiver,
        direction,
        ticks,
        -1,
    )
    if a != b:
        transfer[ROUTE] = a * layers.devices.shape[0] + (b if ticks > 0 else a)


@kernel
def _stage_transfers(
    layers: Layers, transfers: Integers, pairs: Integers, start: Integers, device: Integers, half_replica: Integers
) -> int:
    """Activations between replicas, gradients between those that run I for the same samples; how many."""
    count = 0
    for p in range(pairs.shape[0]):
        for direction in range(1 + pairs[p, HAS_GRADIENT]):
            a, b = (pairs[p, SOURCE], pairs[p, TARGET]) if direction == 0 else (pairs[p, TARGET], pairs[p, SOURCE])
            ra, rb = start[a + 1] - start[a], start[b + 1] - start[b]
            if direction == 1:
                ra, rb = ra + (half_replica[a] >= 0), rb + (half_replica[b] >= 0)
            for i in range(ra):
                x = half_replica[a] if direction == 1 and i == 1 and half_replica[a] >= 0 else start[a] + i
                for j in range(rb):
                    share = min((i + 1) * rb, (j + 1) * ra) - max(i * rb, j * ra)
                    if share > 0:
                        y = half_replica[b] if direction == 1 and j == 1 and half_replica[b] >= 0 else start[b] + j
                        size = ceil_div(pairs[p, FORWARD_SIZE + direction] * share, ra * rb)
                        ticks = _ticks_between(layers, device[x], device[y], size)
                        _write_transfer(layers, device, transfers[count], x, y, direction, ticks)
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
def _add_replicas(
    layers: Layers, solution: Solution, at: Integers, extra: Integers, sizes: Integers, replicas: NetReplicas
) -> None:
    """Write the stage replicas beside those of the stages into `replicas`; their homes give up what they do no more."""
    stage_of, start, devices, _, _ = solution
    num_stages, num_own = start.shape[0] - 1, devices.shape[0]
    duration, size, left = replicas.duration, replicas.size, replicas.devices
    overhead = layers.overhead[1 if num_stages > 1 else 0][layers.devices[:, KIND]]
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own = start[s]
        replicas.stage[n], size[WORKSPACE, n] = num_stages + e, sizes[s, WORKSPACE]
        size[WEIGHT_STASH, own], size[HAS_WEIGHT, own] = 0, 0
        if extra[e, ROLE] == HALF:
            replicas.device[n] = at[HALF_PLACE, s]
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
            left[at[HALF_PLACE, s], MEMORY] -= (
                stage_bytes(layers, stage_of, s) + layers.options[BUFFERS] * size[STASH, n]
            )
        else:
            device = at[WEIGHT_PLACE, s] if at[WEIGHT_PLACE, s] >= 0 else devices[own]
            replicas.device[n] = device
            duration[n, WEIGHT_GRAD] = (
                _work_on(layers, stage_of, s, WEIGHT_GRAD, device) + overhead[device, WEIGHT_GRAD]
            )
            duration[n, BACKWARD], size[HAS_WEIGHT, n] = duration[n, WEIGHT_GRAD], 1
            received = sizes[s, WEIGHT_STASH] if at[WEIGHT_PLACE, s] >= 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            size[WORKSPACE, n] += received
            size[WEIGHT_WORKSPACE, n] = size[WORKSPACE, n]
            size[WEIGHT_STASH, n] = 0 if at[WEIGHT_PLACE, s] >= 0 else sizes[s, WEIGHT_STASH] - received
            left[device, MEMORY] -= layers.options[BUFFERS] * received
            if at[WEIGHT_PLACE, s] >= 0:
                weights = stage_bytes(layers, stage_of, s)
                left[device, MEMORY] -= weights
                replicas.synchronisation[num_stages + e] = transfer_ticks(layers, device, devices[own], weights)


@kernel
def _part_transfers(
    layers: Layers,
    solution: Solution,
    transfers: Integers,
    device: Integers,
    extra: Integers,
    sizes: Integers,
    half_replica: Integers,
) -> int:
    """Stashes from F to half an I, weight stashes from every I to W; returns the number of transfers."""
    num_own, total, count = device.shape[0] - extra.shape[0], layers.options[MICROBATCHES], 0
    for e in range(extra.shape[0]):
        s, n = extra[e, HOME], num_own + e
        own, half = solution.start[s], half_replica[s]
        if extra[e, ROLE] == HALF:
            weights = transfer_ticks(layers, device[own], device[n], stage_bytes(layers, solution.stage_of, s))
            ticks = _ticks_between(layers, device[own], device[n], ceil_div(sizes[s, STASH], 2))
            _write_transfer(layers, device, transfers[count], own, n, 0, ticks + ceil_div(weights, total))
            count += 1
        else:
            size = sizes[s, WEIGHT_STASH] if half < 0 else ceil_div(sizes[s, WEIGHT_STASH], 2)
            _write_transfer(
                layers, device, transfers[count], own, n, 1, _ticks_between(layers, device[own], device[n], size)
            )
            count += 1
            if half >= 0:
                ticks = _ticks_between(layers, device[half], device[n], size)
                _write_transfer(layers, device, transfers[count], half, n, 1, ticks)
                count += 1
    return count


@kernel
def _most_transfers(pairs: Integers, start: Integers, extra: Integers) -> int:
    """Room for the transfers between stages whose parts may be elsewhere."""
    room = 4 * extra.shape[0]
    for p in range(pairs.shape[0]):
        a, b = pairs[p, SOURCE], pairs[p, TARGET]
        room += 2 * (start[a + 1] - start[a] + 1) * (start[b + 1] - start[b] + 1)
    return room


@kernel
def _assemble_split(
    layers: Layers, solution: Solution, at: Integers, extra: Integers, times: Integers, sizes: Integers
) -> Net:
    """The Net of a solution whose stages have W and halves of I `at` [2, S]; `extra` as `_list_replicas` gives it."""
    stage_of, start, devices, _, _ = solution
    num_stages = start.shape[0] - 1
    pairs = stage_traffic(layers, stage_of, num_stages)
    left = placed(layers.devices, static_units(layers, pairs, sizes, start, devices))
    replicas = make_replicas(layers, start, devices, times, sizes, left, extra.shape[0])
    _add_replicas(layers, solution, at, extra, sizes, replicas)
    half_replica = _half_replicas(extra, devices.shape[0], num_stages)
    transfers = np.zeros((_most_transfers(pairs, start, extra), ROUTE + 1), np.int64)
    count = _stage_transfers(layers, transfers, pairs, start, replicas.device, half_replica)
    count += _part_transfers(layers, solution, transfers[count:], replicas.device, extra, sizes, half_replica)
    return connect(layers, replicas, transfers[:count])


@kernel
def net_split(layers: Layers, solution: Solution, preferences: Integers) -> tuple[Net, Integers]:
    """The Net of a solution with preferences, and the [E, 2] stage replicas beside those of the stages."""
    at = places(layers, solution, preferences)
    times, sizes = stage_sums(layers, solution.stage_of, solution.start, solution.devices, solution.modes)
    extra = _list_replicas(sizes, at)
    return _assemble_split(layers, solution, at, extra, times, sizes), extra


@kernel
def _evaluate_split(
    layers: Layers, solution: Solution, preferences: Integers, threshold: int, by_span: bool
) -> Objective:
    """The worth of a solution with preferences, as `annealing.evaluate` has it."""
    net, _ = net_split(layers, solution, preferences)
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
def anneal_split(
    layers: Layers,
    rules: Integers,
    pinned: Integers,
    solution: Solution,
    preferences: Integers,
    cooling: Cooling,
    by_span: bool,
) -> tuple[Solution, Integers, Objective]:
    """`annealing.anneal` with preferences: the best solution, its preferences and its worth."""
    np.random.seed(cooling.seed)
    num_devices = layers.devices.shape[0]
    objective = _evaluate_split(layers, solution, preferences, FAR, by_span)
    best, best_preferences, best_objective = solution, preferences, objective
    for step in range(cooling.steps):
        allowance = draw_allowance(objective, temperature(cooling, step))
        new, proposed = solution, preferences
        if np.random.random() < PREFERENCE_SHARE:
            num_stages = solution.start.shape[0] - 1
            proposed = _redraw_preference(solution.stage_of, num_stages, num_devices, preferences, rules[HALVES])
        else:
            new = neighbour(layers, rules, solution)
            if not is_allowed(layers, rules, pinned, new.stage_of, new.start, new.devices):
                continue
        found = _evaluate_split(layers, new, proposed, threshold_of(objective, allowance), by_span)
        if is_taken(found, objective, allowance):
            solution, preferences, objective = new, proposed, found
            if is_better(objective, best_objective):
                best, best_preferences, best_objective = solution, preferences, objective
    return best, best_preferences, best_objective
