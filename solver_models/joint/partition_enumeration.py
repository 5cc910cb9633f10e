"""All partitions and mappings whose lower bound is below a threshold, found depth first, stage by stage; compiled.

A node is the first stages of a plan: a chain of down-sets of the layer graph, and per stage a device group and modes,
whether it recomputes and whether its replicas shard the optimizer's state. It is left as soon as no plan that begins so
can be below the threshold.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import KIND, MEMORY
from solver_models.exact_order.lower_bounds import MAX_RANKS, schedule_lower_bound
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, Layers
from solver_models.moves.annealing import overflow
from solver_models.moves.lower_bounds import net_lower_bound
from solver_models.moves.neighbourhood import (
    ALWAYS,
    GAPS,
    MAX_STAGES,
    NEVER,
    RECOMPUTE,
    SHARDS,
    SKIP,
    TOGETHER,
    UNEVEN,
    WIDTHS,
    is_allowed,
    is_member,
)
from solver_models.simulation.columns import (
    CHECKPOINT_ROW,
    CUT,
    FIRST,
    FORWARD_PART,
    FORWARD_SIZE,
    GRADIENT_PART,
    GRADIENTS,
    HAS_GRADIENT,
    RECOMPUTATION,
    RECOMPUTING,
    REST_PART,
    SECOND,
    SHARDABLE_ROW,
    SHARDING,
    SOURCE,
    STASH_ONCE,
    STASH_ROW,
    STATE_ONCE,
    STATE_ROW,
    STATED,
    TARGET,
    WORKSPACE_ROW,
)
from solver_models.simulation.evaluator import (
    LEAST_STEP,
    MICROBATCHES,
    SPLIT,
    TAIL,
    assemble,
    ceil_div,
    ticks_for,
    transfer_ticks,
)


class Space(NamedTuple):
    """What the stages of a plan may be: I down-sets of L layers, A pairs of them, G device groups."""

    downset: Integers
    """[I] layers of a down-set as bits; the first is empty, the last has all."""
    arc_start: Integers
    """[I + 1] where the pairs that begin at a down-set begin in `arc_end`."""
    arc_end: Integers
    """[A] the larger down-set of a pair."""
    group_size: Integers
    """[G] replicas."""
    group: Integers
    """[G, R] devices, or groups of several (`kernels.Layers` calls both devices), in order."""
    choice: Integers
    """[C, 2] sets of devices: their first group, and how many orders of it there are, one after the other."""
    choice_ring: Integers
    """[C, 2] latency and bandwidth of an all-reduce over the set, both in the order that is best for it."""
    choice_start: Integers
    """[S, 2] per stage number (the last row for all later ones) the range of sets that it may use."""
    automorphisms: Integers
    """[P, D] permutations of what holds stage replicas that change nothing, the identity left out."""
    choice_image: Integers
    """[P, C] what a permutation makes of a set."""
    group_image: Integers
    """[P, G] what a permutation makes of a group."""
    weight: Integers
    """[T] price of device time per type."""
    least_work: Integers
    """[2, L] priced work of a layer and microbatch, whatever its type and replicas: all of it; F and what gradients
    wait for."""
    all_gradients: Integers
    """[1] 1 if every edge carries a gradient."""


class Node(NamedTuple):
    """The stages chosen so far; rows by stage, devices or stage replicas."""

    arc: Integers
    """[S + 1, 4] down-set before the stage, arc, set of devices and modes (bits as in `columns`)."""
    stage_of: Integers
    """[L] stage of every layer, -1 if not yet placed."""
    head: Integers
    """[S + 1] earliest end of the first F of a stage."""
    tail: Integers
    """[S + 1] what follows the end of the last I of a stage."""
    returning: Integers
    """[S + 1] least ticks of its I."""
    load: Integers
    """[S + 1, D] ticks of all work of a device."""
    begin: Integers
    """[S + 1, D] earliest start of a device."""
    sync: Integers
    """[S + 1, D] least synchronisation that follows its work."""
    room: Integers
    """[S + 1, D] units left beside resident ones."""
    need: Integers
    """[S + 1, D] units that one microbatch of its largest stage needs."""
    held: Integers
    """[S + 1, D] stages."""
    times: Integers
    """[S + 1, T, 3] ticks of F, the part of the backward that gradients wait for, and the rest."""
    sizes: Integers
    """[S + 1, 6] units of a stage; and a key of what they were added up for, 0 if that is not the stage."""
    group: Integers
    """[S + 1] device group, some order of the set."""
    traffic: Integers
    """[S + 1, S, 2] units from an earlier stage, and back; -1 where nothing flows."""


class Tree(NamedTuple):
    """What is enumerated: all plans of a problem below a threshold."""

    layers: Layers
    rules: Integers
    """What `neighbourhood.is_allowed` enforces."""
    pinned: Integers
    """[L] device that must hold the layer, or -1."""
    space: Space
    """Stages that the enumeration may form."""
    by_span: bool
    """Whether the span is bounded, not the makespan."""
    threshold: int
    """Only lower bounds below it are listed."""


class TreeLimits(NamedTuple):
    """Where the enumeration ends, and which part of the tree it has."""

    most_nodes: int
    """Nodes that it looks at."""
    most_cases: int
    """Plans that it lists."""
    share: Integers
    """[2] which part, of how many: the choices of a first stage are dealt out to them in turn."""
    stop: Integers
    """[1] it ends once that is not 0."""


NO_PLAN = 1 << 60
"""Lower bound of what breaks a rule or does not fit: above every threshold."""

FROM, ARC, CHOICE, MODES = range(4)
"""Columns of `Node.arc`: down-set before the stage, arc, choice of devices, modes."""

_ALL_MODES = RECOMPUTING | SHARDING
"""The last of the modes in their order."""

STATE_UNITS, HELD_UNITS, STASH_UNITS, WORKSPACE_UNITS, GRADIENT_UNITS, SIZES_KEY = range(6)
"""Columns of `Node.sizes`; the key says for which devices they were added up."""

BEGIN, COUNT = 0, 1
"""Columns of `Space.choice`: where its groups begin, and how many they are."""

END = 1
"""Column of `Space.choice_start`, after `BEGIN`."""

RING_LATENCY, RING_BANDWIDTH = 0, 1
"""Columns of `Space.choice_ring`."""

ALL_WORK, WORK_BEFORE = 0, 1
"""Rows of `Space.least_work`: all of it, and what comes before the gradient leaves."""

_HEAD_DEVICE = 0
"""Column of `Space.group`."""

LONGEST = 1 << 42
"""Thresholds above this are not multiplied by prices."""


@kernel
def _make_node(num_layers: int, num_stages: int, num_types: int, capacity: Integers) -> Node:
    """A node without stages."""
    shape = (num_stages + 1, capacity.shape[0])
    node = Node(
        np.zeros((num_stages + 1, MODES + 1), np.int64), np.full(num_layers, -1, np.int64),
        np.zeros(num_stages + 1, np.int64), np.zeros(num_stages + 1, np.int64), np.zeros(num_stages + 1, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, int64(NO_PLAN)), np.full(shape, int64(NO_PLAN)), np.zeros(shape, np.int64),
        np.zeros(shape, np.int64), np.zeros(shape, np.int64),
        np.zeros((num_stages + 1, num_types, REST_PART + 1), np.int64),
        np.zeros((num_stages + 1, SIZES_KEY + 1), np.int64), np.zeros(num_stages + 1, np.int64),
        np.zeros((num_stages + 1, num_stages + 1, 2), np.int64),
    )  # fmt: skip
    node.room[0] = capacity
    return node


@kernel
def _is_first_of_its_kind(space: Space, node: Node, s: int) -> bool:
    """Whether no permutation of alike devices makes the sets of stages 0 to s smaller, stage by stage."""
    for p in range(space.choice_image.shape[0]):
        for k in range(s + 1):
            image = space.choice_image[p, node.arc[k, CHOICE]]
            if image < node.arc[k, CHOICE]:
                return False
            if image > node.arc[k, CHOICE]:
                break
    return True


@kernel
def _is_first_order(space: Space, node: Node, s: int) -> bool:
    """Whether no permutation of alike devices that keeps all sets makes the groups of stages 0 to s smaller."""
    for p in range(space.group_image.shape[0]):
        keeps, verdict = True, 0
        for k in range(s + 1):
            keeps = keeps and space.choice_image[p, node.arc[k, CHOICE]] == node.arc[k, CHOICE]
            image = space.group_image[p, node.group[k]]
            if verdict == 0 and image != node.group[k]:
                verdict = 1 if image < node.group[k] else -1
        if keeps and verdict == 1:
            return False
    return True


@kernel
def _owner_of(layers: Layers, node: Node, s: int, device: int) -> int:
    """The group that stages 0 to s - 1 use a device in; the device itself if it is not in use."""
    for holder in range(layers.devices.shape[0]):
        if node.held[s, holder] > 0 and is_member(layers, device, holder):
            return holder
    return device


@kernel
def _keeps_rules(layers: Layers, rules: Integers, pinned: Integers, space: Space, node: Node, s: int) -> bool:
    """Whether stage s may have its group and its layers, as far as the stages up to it tell."""
    g = node.group[s]
    r = space.group_size[g]
    if rules[GAPS]:
        known = layers.measured[layers.table_of_replicas[r]]
        for x in range(r):
            for y in range(node.stage_of.shape[0]):
                if node.stage_of[y] == s and known[layers.devices[space.group[g, x], KIND], y] == 0:
                    return False
    for x in range(r):
        if rules[WIDTHS]:
            for k in range(layers.member_start[space.group[g, x]], layers.member_start[space.group[g, x] + 1]):
                owner = _owner_of(layers, node, s, layers.members[k])
                if node.held[s, owner] > 0 and owner != space.group[g, x]:
                    return False
    for k in range(s if r > 1 else 0):
        other = space.group_size[node.group[k]]
        if other > 1 and other != r and not rules[UNEVEN]:
            return False
        if other > 1 and rules[SHARDS] == TOGETHER and (node.arc[k, MODES] ^ node.arc[s, MODES]) & SHARDING:
            return False
    for y in range(pinned.shape[0]):
        if (
            node.stage_of[y] == s
            and pinned[y] >= 0
            and (r > 1 or not is_member(layers, pinned[y], space.group[g, _HEAD_DEVICE]))
        ):
            return False
    if not rules[SKIP]:
        for e in range(layers.edges.shape[0]):
            if node.stage_of[layers.edges[e, TARGET]] == s and node.stage_of[layers.edges[e, SOURCE]] < s - 1:
                return False
    return True


@kernel
def _stage_work(layers: Layers, space: Space, node: Node, s: int, times: Integers, sizes: Integers) -> None:
    """Fill times [T, 3] with F, the part of the backward that gradients wait for and the rest; sizes with units."""
    num_types, modes, holder = times.shape[0], node.arc[s, MODES], space.group[node.group[s], _HEAD_DEVICE]
    r, v = space.group_size[node.group[s]], layers.width_row[holder]
    table = layers.table_of_replicas[r]
    times[:] = 0
    sizes[:] = 0
    in_equal_parts, shardable = int64(0), int64(0)
    has_weight = False
    fused = np.zeros(num_types, np.int64)
    for x in range(node.stage_of.shape[0]):
        if node.stage_of[x] == s:
            has_weight = has_weight or layers.trainable[x] == 1
            for t in range(num_types):
                extra = layers.work[table, RECOMPUTATION, t, x] if modes & RECOMPUTING else 0
                times[t, FORWARD_PART] += layers.work[table, FORWARD, t, x]
                times[t, GRADIENT_PART] += layers.work[table, INPUT_GRAD, t, x] + extra
                times[t, REST_PART] += layers.work[table, WEIGHT_GRAD, t, x]
                fused[t] += layers.work[table, BACKWARD, t, x] + extra
            sizes[STATE_UNITS] += layers.sizes[v, STATE_ROW, x]
            shardable += layers.sizes[v, SHARDABLE_ROW, x] if modes & SHARDING else 0
            sizes[HELD_UNITS] += layers.sizes[v, CHECKPOINT_ROW if modes & RECOMPUTING else STASH_ROW, x]
            sizes[STASH_UNITS] += layers.sizes[v, STASH_ROW, x]
            sizes[WORKSPACE_UNITS] = max(sizes[WORKSPACE_UNITS], layers.sizes[v, WORKSPACE_ROW, x])
            sizes[GRADIENT_UNITS] += layers.gradient[v, STATED, x]
            in_equal_parts += layers.gradient[v, CUT, x]
    for p in range(layers.together.shape[0] if v == 0 else 0):
        if node.stage_of[layers.together[p, FIRST]] == s and node.stage_of[layers.together[p, SECOND]] == s:
            sizes[STATE_UNITS] -= 0 if modes & SHARDING else layers.together[p, STATE_ONCE]
            once = 0 if modes & RECOMPUTING else layers.together[p, STASH_ONCE]
            sizes[HELD_UNITS], sizes[STASH_UNITS] = sizes[HELD_UNITS] - once, sizes[STASH_UNITS] - once
    sizes[STATE_UNITS] += ceil_div(shardable, r) - shardable
    sizes[GRADIENT_UNITS] += ceil_div(in_equal_parts, layers.member_start[holder + 1] - layers.member_start[holder])
    for t in range(num_types):
        for k in range(3):
            times[t, k] = ceil_div(times[t, k], r)
        if not has_weight:
            times[t, REST_PART] = 0
            continue
        whole = ceil_div(fused[t], r)
        if layers.options[SPLIT]:
            whole = min(whole, times[t, GRADIENT_PART] + times[t, REST_PART])
            times[t, GRADIENT_PART] = min(times[t, GRADIENT_PART], whole)
        else:
            times[t, GRADIENT_PART] = whole
        times[t, REST_PART] = whole - times[t, GRADIENT_PART]
    sizes[HELD_UNITS], sizes[STASH_UNITS] = ceil_div(sizes[HELD_UNITS], r), ceil_div(sizes[STASH_UNITS], r)


@kernel
def _sum_traffic(layers: Layers, node: Node, s: int) -> None:
    """Fill the traffic of stage s with the stages before it."""
    node.traffic[s] = -1
    for p in range(s):
        last, most = -1, np.zeros(2, np.int64)
        for e in range(layers.edges.shape[0]):
            if node.stage_of[layers.edges[e, SOURCE]] == p and node.stage_of[layers.edges[e, TARGET]] == s:
                if layers.edges[e, SOURCE] != last:
                    last = layers.edges[e, SOURCE]
                    most[:] = 0
                for direction in range(2):
                    if direction == 1 and layers.edges[e, HAS_GRADIENT] == 0 and node.traffic[s, p, GRADIENTS] < 0:
                        continue
                    more = max(most[direction], layers.edges[e, FORWARD_SIZE + direction])
                    node.traffic[s, p, direction] = max(node.traffic[s, p, direction], 0) + more - most[direction]
                    most[direction] = more


@kernel
def _least_transfer(layers: Layers, space: Space, node: Node, p: int, s: int, direction: int) -> int:
    """Ticks that what stage p sends stage s (direction  : what comes back) takes at least; -1 if nothing does."""
    size = node.traffic[s, p, direction]
    if size < 0:
        return int64(-1)
    a, b = node.group[p], node.group[s]
    ra, rb = space.group_size[a], space.group_size[b]
    share = ceil_div(size, ra if ra == rb else ra * rb)
    ticks = int64(NO_PLAN)
    for x in range(ra):
        for y in range(rb):
            source, target = space.group[a, x], space.group[b, y]
            if source == target:
                return int64(0)
            if direction == 1:
                source, target = target, source
            ticks = min(ticks, transfer_ticks(layers, source, target, share))
    return ticks


@kernel
def _sizes_key(layers: Layers, replicas: int, modes: int, holder: int) -> int:
    """What times and sizes of a stage depend on beside its layers."""
    return (_ALL_MODES + 1) * replicas + modes + 4096 * layers.width_row[holder]


@kernel
def _load_up(layers: Layers, space: Space, node: Node, s: int) -> int:
    """Put stage s (its layers and its group are set) on its devices, in row s + 1: the largest load, or `NO_PLAN`.

    Every device: all its work, and the units left on it.
    """
    g, modes = node.group[s], node.arc[s, MODES]
    r, count = space.group_size[g], layers.options[MICROBATCHES]
    times, sizes = node.times[s], node.sizes[s]
    key = _sizes_key(layers, r, modes, space.group[g, _HEAD_DEVICE])
    if sizes[SIZES_KEY] != key:
        _stage_work(layers, space, node, s, times, sizes)
        sizes[SIZES_KEY] = key
    for d in range(layers.devices.shape[0]):
        node.load[s + 1, d], node.held[s + 1, d] = node.load[s, d], node.held[s, d]
        node.room[s + 1, d], node.need[s + 1, d] = node.room[s, d], node.need[s, d]
    most = int64(0)
    for x in range(r):
        d = space.group[g, x]
        t = layers.devices[d, KIND]
        node.load[s + 1, d] += count * (times[t, FORWARD_PART] + times[t, GRADIENT_PART] + times[t, REST_PART])
        node.held[s + 1, d] += 1
        node.room[s + 1, d] -= sizes[STATE_UNITS]
        node.need[s + 1, d] = max(node.need[s, d], max(sizes[HELD_UNITS], sizes[STASH_UNITS]) + sizes[WORKSPACE_UNITS])
        if node.need[s + 1, d] > node.room[s + 1, d]:
            return int64(NO_PLAN)
        most = max(most, node.load[s + 1, d])
    return most


@kernel
def append(layers: Layers, space: Space, node: Node, s: int) -> int:
    """Fill in the times of stage s in row s + 1, after `_load_up`; returns a bound on all plans that begin so.

    Every device: earliest start and least synchronisation; every stage: earliest end of its first F, its least I, and
    what must follow that.
    """
    g = node.group[s]
    r, count = space.group_size[g], layers.options[MICROBATCHES]
    times, sizes = node.times[s], node.sizes[s]
    arrival, tail, sync = int64(0), int64(0), int64(0)
    for p in range(s):
        ticks = _least_transfer(layers, space, node, p, s, 0)
        if ticks >= 0:
            arrival = max(arrival, node.head[p] + ticks)
            back = _least_transfer(layers, space, node, p, s, 1)
            if back >= 0:
                tail = max(tail, back + node.returning[p] + node.tail[p])
    if r > 1 and sizes[GRADIENT_UNITS] > 0:
        latency, bandwidth = (
            space.choice_ring[node.arc[s, CHOICE], RING_LATENCY],
            space.choice_ring[node.arc[s, CHOICE], RING_BANDWIDTH],
        )
        hops = (r - 1) * (1 if node.arc[s, MODES] & SHARDING else 2)
        sync = ticks_for(hops * sizes[GRADIENT_UNITS], r * bandwidth) + hops * latency
    node.head[s], node.returning[s] = int64(NO_PLAN), int64(NO_PLAN)
    lower_bound, least_rest = int64(0), int64(NO_PLAN)
    for x in range(r):
        t = layers.devices[space.group[g, x], KIND]
        node.head[s] = min(node.head[s], arrival + times[t, FORWARD_PART])
        node.returning[s] = min(node.returning[s], times[t, GRADIENT_PART])
        least_rest = min(least_rest, times[t, REST_PART])
    node.tail[s] = max(tail, least_rest + sync)
    for d in range(layers.devices.shape[0]):
        node.begin[s + 1, d], node.sync[s + 1, d] = node.begin[s, d], node.sync[s, d]
    for x in range(r):
        d = space.group[g, x]
        t = layers.devices[d, KIND]
        node.begin[s + 1, d] = min(node.begin[s, d], arrival)
        node.sync[s + 1, d] = min(node.sync[s, d], sync)
        lower_bound = max(
            lower_bound, arrival + count * (times[t, FORWARD_PART] + times[t, GRADIENT_PART]) + node.tail[s]
        )
        lower_bound = max(
            lower_bound,
            arrival + count * (times[t, FORWARD_PART] + times[t, GRADIENT_PART] + times[t, REST_PART]) + sync,
        )
        lower_bound = max(lower_bound, node.begin[s + 1, d] + node.load[s + 1, d])
    return lower_bound + layers.options[TAIL] + layers.options[LEAST_STEP]


@kernel
def has_room(layers: Layers, rules: Integers, space: Space, node: Node, s: int, threshold: int, by_span: bool) -> bool:
    """Whether the device time left below the threshold holds all layers that are not in stages 0 to s."""
    num_layers, num_devices = node.stage_of.shape[0], layers.devices.shape[0]
    if threshold > LONGEST:
        return True
    begin, tail, left, left_before = int64(NO_PLAN), int64(NO_PLAN), int64(0), int64(0)
    for x in range(num_layers):
        if node.stage_of[x] < 0:
            left += space.least_work[ALL_WORK, x]
            left_before += space.least_work[WORK_BEFORE, x]
            is_next, head, follow = True, int64(0), int64(0)
            for e in range(layers.edges.shape[0]):
                if layers.edges[e, TARGET] == x:
                    p = node.stage_of[layers.edges[e, SOURCE]]
                    if p < 0:
                        is_next = False
                        break
                    head = max(head, node.head[p])
                    follow = max(follow, node.returning[p] + node.tail[p])
            if is_next:
                begin, tail = min(begin, head), min(tail, follow)
    if left == 0:
        return True
    end = threshold - 1 - layers.options[TAIL] - layers.options[LEAST_STEP]
    if by_span:
        begin, end = int64(0), threshold - 1
    if by_span or space.all_gradients[0] == 0:
        tail = int64(0)
    offered, offered_before = int64(0), int64(0)
    for device in range(num_devices):
        if layers.member_start[device + 1] - layers.member_start[device] > 1:
            break  # groups come last; their time is that of their members
        d = _owner_of(layers, node, s + 1, device) if rules[WIDTHS] else device
        if node.held[s + 1, d] < rules[MAX_STAGES]:
            time = end - min(begin, 0 if by_span else node.begin[s + 1, d])
            price = space.weight[layers.devices[device, KIND]]
            offered += price * max(0, time - node.load[s + 1, d])
            offered_before += price * max(0, min(time - tail, time - node.load[s + 1, d]))
    count = layers.options[MICROBATCHES]
    return count * left <= offered and count * left_before <= offered_before


@kernel
def _leaf_lower_bound(tree: Tree, node: Node, s: int, start: Integers, devices: Integers) -> int:
    """A bound on every order of a complete plan; NO_PLAN if it breaks a rule or does not fit.

    `start` and `devices` are scratch.
    """
    layers, rules, pinned, space, by_span, threshold = tree
    if not _is_first_order(space, node, s):
        return int64(NO_PLAN)
    count = 0
    for k in range(s + 1):
        g = node.group[k]
        start[k] = count
        for x in range(space.group_size[g]):
            devices[count] = space.group[g, x]
            count += 1
    start[s + 1] = count
    if not is_allowed(layers, rules, pinned, node.stage_of, start[: s + 2], devices[:count]):
        return int64(NO_PLAN)
    net = assemble(layers, node.stage_of, start[: s + 2], devices[:count], node.arc[: s + 1, MODES].copy())
    if overflow(net) > 0:
        return int64(NO_PLAN)
    if by_span:
        return np.max(node.load[s + 1])
    lower_bound = net_lower_bound(net)
    if lower_bound < threshold and layers.options[MICROBATCHES] <= MAX_RANKS:
        lower_bound = max(lower_bound, schedule_lower_bound(net, threshold))
    return lower_bound


@kernel
def next_order(space: Space, node: Node, s: int) -> bool:
    """Move on to the next order of the replicas of stages 0 to s; False, with all in their first, after the last."""
    for k in range(s + 1):
        first, count = space.choice[node.arc[k, CHOICE], BEGIN], space.choice[node.arc[k, CHOICE], COUNT]
        node.group[k] += 1
        if node.group[k] < first + count:
            return True
        node.group[k] = first
    return False


@kernel
def _is_promising(tree: Tree, node: Node, s: int) -> bool:
    """Whether a plan below the threshold may begin with stages 0 to s, before the rest is looked at."""
    layers, rules, pinned, space, by_span, threshold = tree
    if not _keeps_rules(layers, rules, pinned, space, node, s) or not _is_first_of_its_kind(space, node, s):
        return False
    if _load_up(layers, space, node, s) >= threshold:
        return False
    return append(layers, space, node, s) < (int64(NO_PLAN) if by_span else threshold)


@kernel
def find_cases(tree: Tree, limits: TreeLimits) -> tuple[Integers, int]:
    """[cases, 1 + L + 2 S] lower bound, stage of every layer, group and modes per stage (-1: none); nodes looked at.

    The number of nodes is `most_nodes` if that, or `most_cases`, was not enough, or if `stop` was set.
    """
    layers, rules, _, space, by_span, threshold = tree
    most_nodes, most_cases, share, stop = limits
    num_layers, num_devices, last = layers.trainable.shape[0], layers.devices.shape[0], space.downset.shape[0] - 1
    most_stages = min(num_layers, np.sum(layers.width_row == 0) * rules[MAX_STAGES])
    node = _make_node(num_layers, most_stages, layers.work.shape[2], layers.devices[:, MEMORY])
    start, devices = np.zeros(most_stages + 1, np.int64), np.zeros(most_stages * num_devices, np.int64)
    found, count, nodes, s = np.full((64, 1 + num_layers + 2 * most_stages), -1, np.int64), 0, 0, 0
    _open_stage(layers, rules, space, node, 0, 0)
    arc, held, load, times, sizes = node.arc, node.held, node.load, node.times, node.sizes
    group, group_size, num_micro = space.group, space.group_size, layers.options[MICROBATCHES]
    is_plain, most_held, row_end = not _has_modes(rules), rules[MAX_STAGES], np.zeros(most_stages, np.int64)
    for k in range(most_stages):
        row_end[k] = space.choice_start[min(k, space.choice_start.shape[0] - 1), END]
    while s >= 0:
        if is_plain and arc[s, CHOICE] + 1 < row_end[s]:  # most often, so that no helper is handed everything
            arc[s, CHOICE] += 1
        elif not _next_choice(layers, rules, space, node, s, row_end[s]):
            _unplace(node, s)
            s -= 1
            continue
        nodes += 1
        if nodes >= most_nodes or stop[0] != 0:
            return found[:count], most_nodes
        if s == 0 and (arc[0, ARC] + arc[0, CHOICE]) % share[1] != share[0]:
            continue
        g, fits = space.choice[arc[s, CHOICE], BEGIN], True
        node.group[s] = g
        is_known = sizes[s, SIZES_KEY] == _sizes_key(layers, group_size[g], arc[s, MODES], group[g, _HEAD_DEVICE])
        for x in range(group_size[g]):
            d = group[g, x]
            fits = fits and held[s, d] < most_held
            if is_known:
                t = layers.devices[d, KIND]
                work = times[s, t, FORWARD_PART] + times[s, t, GRADIENT_PART] + times[s, t, REST_PART]
                fits = fits and load[s, d] + num_micro * work < threshold
        if not fits or not _is_promising(tree, node, s):
            continue
        reached = space.arc_end[node.arc[s, ARC]]
        if reached == last:
            while True:
                lower_bound = _leaf_lower_bound(tree, node, s, start, devices)
                if lower_bound < threshold:
                    if count == most_cases:
                        return found[:count], most_nodes
                    if count == found.shape[0]:
                        found = np.concatenate((found, np.full(found.shape, int64(-1))))
                    write_case(found[count], node, s, lower_bound)
                    count += 1
                nodes += 1
                if not next_order(space, node, s):
                    break
        elif s + 1 < most_stages and has_room(layers, rules, space, node, s, threshold, by_span):
            s += 1
            _open_stage(layers, rules, space, node, s, reached)
    return found[:count], nodes


@kernel
def _open_stage(layers: Layers, rules: Integers, space: Space, node: Node, s: int, reached: int) -> None:
    """Make stage s begin at a down-set, before its first choice."""
    node.arc[s, FROM], node.arc[s, ARC] = reached, space.arc_start[reached]
    node.arc[s, CHOICE] = space.choice_start[min(s, space.choice_start.shape[0] - 1), BEGIN] - 1
    node.arc[s, MODES] = _ALL_MODES if _has_modes(rules) else 0
    place(layers, space, node, s)


@kernel
def write_case(row: Integers, node: Node, s: int, lower_bound: int) -> None:
    """Write the plan of stages 0 to s into a row of -1."""
    num_layers = node.stage_of.shape[0]
    most_stages = (row.shape[0] - 1 - num_layers) // 2
    row[0] = lower_bound
    row[1 : num_layers + 1] = node.stage_of
    row[num_layers + 1 : num_layers + 2 + s] = node.group[: s + 1]
    row[num_layers + 1 + most_stages : num_layers + 2 + most_stages + s] = node.arc[: s + 1, MODES]


@kernel
def place(layers: Layers, space: Space, node: Node, s: int) -> None:
    """Give stage s the layers of its arc."""
    new = space.downset[space.arc_end[node.arc[s, ARC]]] & ~space.downset[node.arc[s, FROM]]
    for x in range(node.stage_of.shape[0]):
        if new >> x & 1:
            node.stage_of[x] = s
    node.sizes[s, SIZES_KEY] = 0
    _sum_traffic(layers, node, s)


@kernel
def _unplace(node: Node, s: int) -> None:
    """Take the layers of stage s back."""
    for x in range(node.stage_of.shape[0]):
        if node.stage_of[x] == s:
            node.stage_of[x] = -1


@kernel
def _has_modes(rules: Integers) -> bool:
    """Whether a stage may have other modes than 0."""
    return rules[RECOMPUTE] != 0 or rules[SHARDS] != NEVER


@kernel
def _next_modes(rules: Integers, replicas: int, least: int) -> int:
    """The first modes from `least` on that a stage may have; above `_ALL_MODES` if there are none.

    One replica shards nothing.
    """
    can_shard = replicas > 1 and rules[SHARDS] != NEVER
    for modes in range(least, _ALL_MODES + 1):
        if modes & RECOMPUTING and not rules[RECOMPUTE]:
            continue
        if modes & SHARDING and not can_shard:
            continue
        if can_shard and rules[SHARDS] == ALWAYS and not modes & SHARDING:
            continue
        return modes
    return _ALL_MODES + 1


@kernel
def _next_choice(layers: Layers, rules: Integers, space: Space, node: Node, s: int, last_choice: int) -> bool:
    """Move on to the next modes, group or arc of stage s; False if there is none left."""
    if _has_modes(rules) and node.arc[s, MODES] < _ALL_MODES:
        node.arc[s, MODES] = _next_modes(rules, _replicas_of(space, node, s), node.arc[s, MODES] + 1)
        if node.arc[s, MODES] <= _ALL_MODES:
            return True
    node.arc[s, CHOICE] += 1
    if node.arc[s, CHOICE] >= last_choice:
        node.arc[s, CHOICE] = space.choice_start[min(s, space.choice_start.shape[0] - 1), BEGIN]
        _unplace(node, s)
        node.arc[s, ARC] += 1
        if node.arc[s, ARC] == space.arc_start[node.arc[s, FROM] + 1]:
            return False
        place(layers, space, node, s)
    node.arc[s, MODES] = _next_modes(rules, _replicas_of(space, node, s), 0)
    return True


@kernel
def _replicas_of(space: Space, node: Node, s: int) -> int:
    """How many replicas the set of devices of stage s makes."""
    return space.group_size[space.choice[node.arc[s, CHOICE], BEGIN]]
