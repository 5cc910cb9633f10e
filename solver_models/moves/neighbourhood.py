"""Steps from one joint plan to a neighbour: which layers, on which devices, under which list-scheduling policy.

Stages never decrease along an edge, so that every stage is convex and the stage graph acyclic. Every step returns new
arrays or the old ones. Layers a .. f in stages [ ], on devices 0 .. 3 below them:

    [a b c] [d e] [f]     shift_boundary   [a b] [c d e] [f]    some layers at a boundary change sides
     0       1 2   3      recut            [a b c d] [e] [f]    the boundary goes anywhere between its neighbours
                          move_layer       [a b c] [d] [e f]    one layer, to any stage that its edges allow

    swap_devices          [a b c] [d e] [f]     split_stage     [a] [b c] [d e] [f]
                           3       1 2   0                       0   3     1 2   3
    move_replica          [a b c] [d e] [f]     merge_stages    [a b c d e] [f]
                           0 1     2     3                       0 1 2       3
    reorder_replicas      [a b c] [d e] [f]     widen, narrow   0 1 2 3 -> (0 1) (2 3): groups that act as one device,
                           0       2 1   3                      and back

What moves, splits or merges replicas continues until their numbers are allowed (`replica_counts`).
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.device_rows import KIND
from solver_models.instance import Instance, Integers, Layers
from solver_models.moves.replica_counts import may_have, settle, settle_counts
from solver_models.moves.stage_steps import cut_layers, merge_two
from solver_models.simulation.columns import RECOMPUTING, SHARDING, SOURCE, TARGET
from solver_models.simulation.event_heap import MOST_STAGES


class Solution(NamedTuple):
    """What the joint search decides: which layers, on which devices, under which list-scheduling policy."""

    stage_of: Integers
    """[L] stage of every layer."""
    start: Integers
    """[S + 1] where the replicas of a stage begin in `devices`."""
    devices: Integers
    """[N] device of every replica."""
    modes: Integers
    """[S] bits: whether a stage recomputes, and whether its replicas shard (`columns`)."""
    policy_params: Integers
    """[4] list-scheduling policy."""


CAP_SLOPE, CAP_OFFSET, LAG, MODE = 0, 1, 2, 3
"""Indices into `policy_params`: cap of a stage replica in stage s is slope * (S - s) / 4 + offset; W lag and mode of
every device."""

MAX_STAGES, MAX_REPLICAS, UNEVEN, SKIP, IDLE, RECOMPUTE, IS_DAG, FIXED_PARTITION, FIXED_MAPPING, WIDTHS = range(10)
GAPS, HALVES, SHARDS = 10, 11, 12
"""Indices into `rules`: what the executor and the user allow, whether costs are missing, whether I can be halved."""

_SHARD_CHOICES = ("never", "together", "allow", "always")
"""What stages may shard, by the rule's number."""

NEVER, TOGETHER, FREELY, ALWAYS = range(len(_SHARD_CHOICES))
"""Those; two of them leave a choice."""


def make_rules(instance: Instance) -> Integers:
    """[13] an instance's rules, by the indices above; most are options of its question."""
    edges, on = instance.layers.edges, instance.rules
    is_chain = len(edges) == instance.num_layers - 1 and bool(np.all(edges[:, 1] == edges[:, 0] + 1))
    return np.array(
        [
            on["max_stages_per_device"], len(instance.layers.table_of_replicas) - 1, "uneven_replication" in on,
            "skip_edges" in on, "idle_devices" in on, "recompute" in on, not is_chain,
            instance.given_stages is not None, instance.given_groups is not None, instance.wide is not None,
            instance.has_gaps, instance.can_halve, _SHARD_CHOICES.index(instance.shard_choice),
        ],
        dtype=np.int64,
    )  # fmt: skip


@kernel
def is_allowed(
    layers: Layers, rules: Integers, pinned: Integers, stage_of: Integers, start: Integers, devices: Integers
) -> bool:
    """Whether the candidate keeps the rules on stages per device, replicas, skip edges, idle devices and pins."""
    num_stages, num_devices = start.shape[0] - 1, layers.devices.shape[0]
    if num_stages > MOST_STAGES:
        return False
    held = np.zeros(num_devices, np.int64)
    seen = np.full(num_devices, -1, np.int64)
    replicas = 1
    for s in range(num_stages):
        r = start[s + 1] - start[s]
        if not may_have(layers, r):
            return False
        if r > 1:
            if not rules[UNEVEN] and replicas > 1 and r != replicas:
                return False
            replicas = r
        for n in range(start[s], start[s + 1]):
            d = devices[n]
            if seen[d] == s:
                return False
            seen[d] = s
            held[d] += 1
            if held[d] > rules[MAX_STAGES]:
                return False
    if rules[GAPS] and not is_measured(layers, stage_of, start, devices):
        return False
    if rules[WIDTHS]:
        if not _keeps_widths(layers, start, devices, rules[IDLE]):
            return False
    elif not rules[IDLE] and held.min() == 0:
        return False
    if not rules[SKIP]:
        for e in range(layers.edges.shape[0]):
            if stage_of[layers.edges[e, TARGET]] - stage_of[layers.edges[e, SOURCE]] > 1:
                return False
    return _keeps_pins(layers, pinned, stage_of, start, devices)


@kernel
def _keeps_pins(layers: Layers, pinned: Integers, stage_of: Integers, start: Integers, devices: Integers) -> bool:
    """Whether every replica of a pinned layer's stage includes its device."""
    for x in range(pinned.shape[0]):
        if pinned[x] >= 0:
            for n in range(start[stage_of[x]], start[stage_of[x] + 1]):
                if not is_member(layers, pinned[x], devices[n]):
                    return False
    return True


@kernel
def is_member(layers: Layers, device: int, group: int) -> bool:
    """Whether a single device is a member of a group."""
    return bool(np.any(layers.members[layers.member_start[group] : layers.member_start[group + 1]] == device))


@kernel
def is_measured(layers: Layers, stage_of: Integers, start: Integers, devices: Integers) -> bool:
    """Whether every layer has a cost on the types and widths of its stage, for its number of replicas."""
    for x in range(stage_of.shape[0]):
        s = stage_of[x]
        table = layers.table_of_replicas[start[s + 1] - start[s]]
        for n in range(start[s], start[s + 1]):
            if layers.measured[table, layers.devices[devices[n], KIND], x] == 0:
                return False
    return True


@kernel
def _keeps_widths(layers: Layers, start: Integers, devices: Integers, may_idle: int) -> bool:
    """Whether used groups are equal or disjoint, and of one width per stage."""
    num_stages = start.shape[0] - 1
    owner = np.full(layers.devices.shape[0], -1, np.int64)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            group = devices[n]
            if layers.width_row[group] != layers.width_row[devices[start[s]]]:
                return False
            for k in range(layers.member_start[group], layers.member_start[group + 1]):
                if owner[layers.members[k]] >= 0 and owner[layers.members[k]] != group:
                    return False
                owner[layers.members[k]] = group
    if not may_idle:
        for d in range(layers.devices.shape[0]):
            if layers.member_start[d + 1] - layers.member_start[d] == 1 and owner[d] < 0:
                return False
    return True


@kernel
def members(stage_of: Integers, s: int) -> Integers:
    """Indices of the layers of stage s, ascending."""
    return np.nonzero(stage_of == s)[0]


@kernel
def shift_boundary(stage_of: Integers, num_stages: int) -> Integers:
    """Move the last layers of a stage to the next one, or the first layers of the next one back."""
    s = np.random.randint(num_stages - 1)
    step = 1
    while step < 64 and np.random.random() < 0.5:
        step *= 2
    count = 1 + np.random.randint(step)
    up = np.random.random() < 0.5
    inside = members(stage_of, s if up else s + 1)
    count = min(count, inside.shape[0] - 1)
    result = stage_of.copy()
    for k in range(count):
        if up:
            result[inside[inside.shape[0] - 1 - k]] = s + 1
        else:
            result[inside[k]] = s
    return result


@kernel
def recut(stage_of: Integers, num_stages: int) -> Integers:
    """Put the cut between two neighbouring stages anywhere."""
    s = np.random.randint(num_stages - 1)
    both = np.nonzero((stage_of == s) | (stage_of == s + 1))[0]
    cut = 1 + np.random.randint(both.shape[0] - 1)
    result = stage_of.copy()
    result[both[:cut]] = s
    result[both[cut:]] = s + 1
    return result


@kernel
def move_layer(stage_of: Integers, num_stages: int, edges: Integers) -> Integers:
    """Move one layer to any stage that its producers and consumers allow: branches change company."""
    layer = np.random.randint(stage_of.shape[0])
    low, high = 0, num_stages - 1
    for e in range(edges.shape[0]):
        if edges[e, TARGET] == layer:
            low = max(low, stage_of[edges[e, SOURCE]])
        elif edges[e, SOURCE] == layer:
            high = min(high, stage_of[edges[e, TARGET]])
    result = stage_of.copy()
    if high > low and np.sum(stage_of == stage_of[layer]) > 1:
        result[layer] = low + np.random.randint(high - low + 1)
    return result


@kernel
def swap_devices(devices: Integers, num_devices: int) -> Integers:
    """Exchange the device of a stage replica with that of another stage replica, or with any other device."""
    result = devices.copy()
    n = np.random.randint(devices.shape[0])
    if np.random.random() < 0.6:
        k = np.random.randint(devices.shape[0])
        result[n], result[k] = devices[k], devices[n]
    else:
        other = np.random.randint(num_devices)
        for k in range(devices.shape[0]):
            if devices[k] == other:
                result[k] = devices[n]
            elif devices[k] == devices[n]:
                result[k] = other
    return result


@kernel
def move_replica(start: Integers, devices: Integers, num_devices: int) -> tuple[Integers, Integers]:
    """Take a replica from one stage, or an idle device, and give it to another stage, or to none."""
    num_stages = start.shape[0] - 1
    target = np.random.randint(num_stages + 1) if np.random.random() < 0.15 else np.random.randint(num_stages)
    if np.random.random() < 0.6:
        n = np.random.randint(devices.shape[0])
        device = devices[n]
    else:
        n = -1
        device = np.random.randint(num_devices)
    result = np.empty(devices.shape[0] + 1, np.int64)
    starts = np.zeros(num_stages + 1, np.int64)
    count = 0
    for s in range(num_stages):
        for k in range(start[s], start[s + 1]):
            if k != n:
                result[count] = devices[k]
                count += 1
        if s == target:
            result[count] = device
            count += 1
        starts[s + 1] = count
    return starts, result[:count]


@kernel
def contains(layers: Layers, large: int, small: int) -> bool:
    """Whether every member of group `small` is one of group `large`."""
    for k in range(layers.member_start[small], layers.member_start[small + 1]):
        if not is_member(layers, layers.members[k], large):
            return False
    return True


@kernel
def widen(layers: Layers, start: Integers, devices: Integers) -> tuple[Integers, Integers]:
    """Let a wider group that contains one of a stage's groups take the place of all groups that it touches."""
    s = np.random.randint(start.shape[0] - 1)
    group = devices[start[s] + np.random.randint(start[s + 1] - start[s])]
    wider = np.empty(layers.devices.shape[0], np.int64)
    count = 0
    for g in range(layers.devices.shape[0]):
        if layers.width_row[g] == layers.width_row[group] + 1 and contains(layers, g, group):
            wider[count] = g
            count += 1
    if count == 0:
        return start, devices
    target = wider[np.random.randint(count)]
    is_whole = np.random.random() < 0.5  # the other replicas of the stage become as wide, each with its own group
    starts, result, count = np.zeros_like(start), np.empty(devices.shape[0], np.int64), 0
    for t in range(start.shape[0] - 1):
        for n in range(start[t], start[t + 1]):
            holder = devices[n]
            if contains(layers, target, holder):
                holder = target
            elif t == s:
                if not is_whole:
                    continue
                for g in range(layers.devices.shape[0]):
                    if layers.width_row[g] == layers.width_row[target] and contains(layers, g, holder):
                        holder = g
                        break
            is_new = True
            for k in range(starts[t], count):
                is_new = is_new and result[k] != holder
            if is_new:
                result[count] = holder
                count += 1
        starts[t + 1] = count
    return starts, result[:count]


@kernel
def narrow(layers: Layers, start: Integers, devices: Integers) -> tuple[Integers, Integers]:
    """Break a group into narrower ones: each stage on it goes to one of them, or is replicated over all of them."""
    group = devices[np.random.randint(devices.shape[0])]
    parts = np.empty(layers.devices.shape[0], np.int64)
    num_parts = 0
    for g in range(layers.devices.shape[0]):
        if layers.width_row[g] == layers.width_row[group] - 1 and contains(layers, group, g):
            parts[num_parts] = g
            num_parts += 1
    if num_parts == 0:
        return start, devices
    is_spread = np.random.random() < 0.5
    starts, result, count = np.zeros_like(start), np.empty(devices.shape[0] * num_parts, np.int64), 0
    for t in range(start.shape[0] - 1):
        for n in range(start[t], start[t + 1]):
            if devices[n] != group:
                result[count] = devices[n]
                count += 1
            elif is_spread:
                result[count : count + num_parts] = parts[:num_parts]
                count += num_parts
            else:
                result[count] = parts[np.random.randint(num_parts)]
                count += 1
        starts[t + 1] = count
    return starts, result[:count]


@kernel
def reorder_replicas(start: Integers, devices: Integers) -> Integers:
    """Permute the replicas of one stage: the ring and the sample ranges change."""
    s = np.random.randint(start.shape[0] - 1)
    result = devices.copy()
    result[start[s] : start[s + 1]] = np.random.permutation(devices[start[s] : start[s + 1]])
    return result


@kernel
def split_stage(
    stage_of: Integers, start: Integers, devices: Integers, modes: Integers, num_devices: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """Cut a stage in two; a replicated one shares out its devices, another takes any device for its second part."""
    num_stages = start.shape[0] - 1
    s = np.random.randint(num_stages)
    inside = members(stage_of, s)
    if inside.shape[0] < 2:
        return stage_of, start, devices, modes
    new_stage = cut_layers(stage_of, s, 1 + np.random.randint(inside.shape[0] - 1))
    replicas = start[s + 1] - start[s]
    new_start = np.empty(num_stages + 2, np.int64)
    new_start[: s + 1] = start[: s + 1]
    new_modes = np.concatenate((modes[: s + 1], modes[s:]))
    if replicas > 1 and np.random.random() < 0.8:
        new_start[s + 1] = start[s] + 1 + np.random.randint(replicas - 1)
        new_start[s + 2 :] = start[s + 1 :]
        return new_stage, new_start, devices.copy(), new_modes
    new_start[s + 1] = start[s + 1]
    new_start[s + 2 :] = start[s + 1 :] + 1
    extra = np.array([np.random.randint(num_devices)])
    new_devices = np.concatenate((devices[: start[s + 1]], extra, devices[start[s + 1] :]))
    return new_stage, new_start, new_devices, new_modes


@kernel
def merge_stages(
    stage_of: Integers, start: Integers, devices: Integers, modes: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Make one stage of two neighbours, on the devices of both, or of one of them."""
    num_stages = start.shape[0] - 1
    s = np.random.randint(num_stages - 1)
    draw = np.random.random()
    return merge_two((stage_of, start, devices, modes), s, draw >= 0.2, draw < 0.2 or draw >= 0.4)


@kernel
def _flip(modes: Integers, rules: Integers) -> Integers:
    """Turn recomputation of a stage on or off, or sharding: of a stage, or of all."""
    result = modes.copy()
    can_shard = rules[SHARDS] == TOGETHER or rules[SHARDS] == FREELY
    bit = RECOMPUTING if rules[RECOMPUTE] else SHARDING
    if rules[RECOMPUTE] and can_shard and np.random.random() < 0.5:
        bit = SHARDING
    if bit == SHARDING and rules[SHARDS] == TOGETHER:
        return result ^ SHARDING
    result[np.random.randint(modes.shape[0])] ^= bit
    return result


@kernel
def _tune_policy_params(policy_params: Integers) -> Integers:
    """Change one number of the list-scheduling policy."""
    result = policy_params.copy()
    k = np.random.randint(4)
    if k == CAP_SLOPE:
        result[k] = (0, 2, 4, 5, 6, 8, 12)[np.random.randint(7)]
    elif k == CAP_OFFSET:
        result[k] = min(max(policy_params[k] + np.random.randint(-2, 3), 0), 1 << 20)
        if np.random.random() < 0.1:
            result[k] = 1048576
    elif k == LAG:
        result[k] = (0, 1, 2, 3, 5, 1 << 20)[np.random.randint(6)]
    else:
        result[k] = policy_params[k] ^ (1, 2, 4)[np.random.randint(3)]
    return result


@kernel
def neighbour(layers: Layers, rules: Integers, solution: Solution) -> Solution:
    """One random step."""
    stage_of, start, devices, modes, policy_params = solution
    num_stages, num_devices = start.shape[0] - 1, layers.devices.shape[0]
    draw = np.random.random()
    can_flip = rules[RECOMPUTE] or rules[SHARDS] == TOGETHER or rules[SHARDS] == FREELY
    if draw < 0.15 or (rules[FIXED_MAPPING] and not can_flip):
        return Solution(stage_of, start, devices, modes, _tune_policy_params(policy_params))
    if (draw < 0.18 or rules[FIXED_MAPPING]) and can_flip:
        return Solution(stage_of, start, devices, _flip(modes, rules), policy_params)
    if rules[WIDTHS] and not rules[FIXED_MAPPING] and np.random.random() < 0.1:
        starts, result = widen(layers, start, devices) if np.random.random() < 0.5 else narrow(layers, start, devices)
        return Solution(stage_of, starts, result, modes, policy_params)
    if draw < 0.65 and not rules[FIXED_PARTITION] and num_stages > 1:
        if draw < 0.50:
            new_stage = shift_boundary(stage_of, num_stages)
        elif draw < 0.55 or not rules[IS_DAG]:
            new_stage = recut(stage_of, num_stages)
        else:
            new_stage = move_layer(stage_of, num_stages, layers.edges)
        return Solution(new_stage, start, devices, modes, policy_params)
    if draw < 0.78 or (rules[FIXED_PARTITION] and rules[MAX_REPLICAS] == 1):
        return Solution(stage_of, start, swap_devices(devices, num_devices), modes, policy_params)
    if (draw < 0.89 or rules[FIXED_PARTITION]) and rules[MAX_REPLICAS] > 1:
        starts, result = move_replica(start, devices, num_devices)
        starts, result = settle_counts(layers, starts, result, rules[MAX_STAGES])
        return Solution(stage_of, starts, result, modes, policy_params)
    if draw < 0.90 and rules[MAX_REPLICAS] > 1:
        return Solution(stage_of, start, reorder_replicas(start, devices), modes, policy_params)
    if draw < 0.95 or num_stages == 1:
        split = split_stage(stage_of, start, devices, modes, num_devices)
        split = settle(layers, split, rules[MAX_STAGES], False)
        return Solution(split[0], split[1], split[2], split[3], policy_params)
    merged = settle(layers, merge_stages(stage_of, start, devices, modes), rules[MAX_STAGES], True)
    return Solution(merged[0], merged[1], merged[2], merged[3], policy_params)
