"""All partitions and mappings whose floor is below a threshold, found depth first, stage by stage; compiled.

A node is the first stages of a plan: a chain of down-sets of the layer graph, a device group and a recomputation flag
per stage. It is left as soon as no plan that begins so can be below the threshold.
"""

from typing import NamedTuple

import numpy as np

from solver_models.annealing import overflow
from solver_models.compiled import kernel
from solver_models.instance import Integers
from solver_models.joint.floors import MAX_LANES, MAX_RANKS, schedule_floor
from solver_models.kernels import MICROBATCHES, SPLIT, TAIL, assemble, ceil_div, ring_ticks, transfer_ticks
from solver_models.moves import MAX_STAGES, RECOMPUTE, SKIP, UNEVEN, WIDTHS, is_allowed, is_member
from solver_models.quick_floors import net_floor


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
    """[G, R] devices, in order."""
    group_start: Integers
    """[S + 1, 2] per stage number (the last row for all later ones) the range of groups that it may use."""
    automorphisms: Integers
    """[P, D] device permutations that change nothing, the identity left out."""
    weight: Integers
    """[T] price of device time per type."""
    least_work: Integers
    """[2, L] priced work of a layer and microbatch, whatever its type and replicas: all of it; F and what gradients
    wait for."""
    all_gradients: Integers
    """[1] 1 if every edge carries a gradient."""


class Node(NamedTuple):
    """The stages chosen so far; rows by stage, devices or lanes."""

    arc: Integers
    """[S + 1, 4] down-set before the stage, arc, group and recomputation flag (the last three: the next to try)."""
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


FAR = 1 << 60


@kernel
def make_node(num_layers, num_devices, num_stages, capacity):
    """A node without stages."""
    shape = (num_stages + 1, num_devices)
    node = Node(
        np.zeros((num_stages + 1, 4), np.int64), np.full(num_layers, -1, np.int64), np.zeros(num_stages + 1, np.int64),
        np.zeros(num_stages + 1, np.int64), np.zeros(num_stages + 1, np.int64), np.zeros(shape, np.int64),
        np.full(shape, np.int64(FAR)), np.full(shape, np.int64(FAR)),
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64),
    )  # fmt: skip
    node.room[0] = capacity
    return node


@kernel
def is_first_of_its_kind(space, node, s):
    """Whether no permutation of alike devices makes the groups of stages 0 to s smaller, device by device."""
    for p in range(space.automorphisms.shape[0]):
        for k in range(s + 1):
            g = node.arc[k, 2]
            verdict = 0
            for x in range(space.group_size[g]):
                image = space.automorphisms[p, space.group[g, x]]
                if image != space.group[g, x]:
                    verdict = 1 if image < space.group[g, x] else -1
                    break
            if verdict == 1:
                return False
            if verdict == -1:
                break
    return True


@kernel
def owner_of(layers, node, s, device):
    """The group that stages 0 to s - 1 use a device in; the device itself if it is not in use."""
    for holder in range(layers.capacity.shape[0]):
        if node.held[s, holder] > 0 and is_member(layers, device, holder):
            return holder
    return device


@kernel
def keeps_rules(layers, rules, pinned, space, node, s):
    """Whether stage s may have its group and its layers, as far as the stages up to it tell."""
    g = node.arc[s, 2]
    r = space.group_size[g]
    for x in range(r):
        if node.held[s, space.group[g, x]] >= rules[MAX_STAGES]:
            return False
        if rules[WIDTHS]:
            for k in range(layers.member_start[space.group[g, x]], layers.member_start[space.group[g, x] + 1]):
                owner = owner_of(layers, node, s, layers.members[k])
                if node.held[s, owner] > 0 and owner != space.group[g, x]:
                    return False
    if r > 1 and not rules[UNEVEN]:
        for k in range(s):
            other = space.group_size[node.arc[k, 2]]
            if other > 1 and other != r:
                return False
    for y in range(pinned.shape[0]):
        if node.stage_of[y] == s and pinned[y] >= 0 and (r > 1 or not is_member(layers, pinned[y], space.group[g, 0])):
            return False
    if not rules[SKIP]:
        for e in range(layers.edges.shape[0]):
            if node.stage_of[layers.edges[e, 1]] == s and node.stage_of[layers.edges[e, 0]] < s - 1:
                return False
    return True


@kernel
def stage_work(layers, space, node, s, times, sizes):
    """Fill times [T, 3] with F, the part of the backward that gradients wait for and the rest; sizes [5] with units."""
    num_types, recompute, holder = times.shape[0], node.arc[s, 3], space.group[node.arc[s, 2], 0]
    r, v = space.group_size[node.arc[s, 2]], layers.width_row[holder]
    table = layers.table_of_replicas[r]
    times[:] = 0
    sizes[:] = 0
    in_equal_parts = np.int64(0)
    has_weight = False
    fused = np.zeros(num_types, np.int64)
    for x in range(node.stage_of.shape[0]):
        if node.stage_of[x] == s:
            has_weight = has_weight or layers.trainable[x] == 1
            for t in range(num_types):
                extra = layers.work[table, 4, t, x] if recompute else 0
                times[t, 0] += layers.work[table, 0, t, x]
                times[t, 1] += layers.work[table, 1, t, x] + extra
                times[t, 2] += layers.work[table, 2, t, x]
                fused[t] += layers.work[table, 3, t, x] + extra
            sizes[0] += layers.state[v, x]
            sizes[1] += layers.checkpoint[v, x] if recompute else layers.stash[v, x]
            sizes[2] += layers.stash[v, x]
            sizes[3] = max(sizes[3], layers.workspace[v, x])
            sizes[4] += layers.gradient[v, 0, x]
            in_equal_parts += layers.gradient[v, 1, x]
    sizes[4] += ceil_div(in_equal_parts, layers.member_start[holder + 1] - layers.member_start[holder])
    for t in range(num_types):
        for k in range(3):
            times[t, k] = ceil_div(times[t, k], r)
        if not has_weight:
            times[t, 2] = 0
            continue
        whole = ceil_div(fused[t], r)
        if layers.options[SPLIT]:
            whole = min(whole, times[t, 1] + times[t, 2])
            times[t, 1] = min(times[t, 1], whole)
        else:
            times[t, 1] = whole
        times[t, 2] = whole - times[t, 1]
    sizes[1], sizes[2] = ceil_div(sizes[1], r), ceil_div(sizes[2], r)


@kernel
def least_transfer(layers, space, node, p, s, way):
    """Ticks that what stage p sends stage s (way 1: what comes back) takes at least; -1 if nothing does."""
    size, last, most, gradient, found = np.int64(0), -1, np.int64(0), False, False
    for e in range(layers.edges.shape[0]):
        if node.stage_of[layers.edges[e, 0]] == p and node.stage_of[layers.edges[e, 1]] == s:
            if layers.edges[e, 0] != last:
                last, most = layers.edges[e, 0], np.int64(0)
            more = max(most, layers.edges[e, 2 + way])
            size += more - most
            most = more
            found = True
            gradient = gradient or layers.edges[e, 4] == 1
    if not found or (way == 1 and not gradient):
        return np.int64(-1)
    a, b = node.arc[p, 2], node.arc[s, 2]
    ra, rb = space.group_size[a], space.group_size[b]
    share = ceil_div(size, ra if ra == rb else ra * rb)
    ticks = np.int64(FAR)
    for x in range(ra):
        for y in range(rb):
            source, target = space.group[a, x], space.group[b, y]
            if source == target:
                return np.int64(0)
            if way == 1:
                source, target = target, source
            ticks = min(ticks, transfer_ticks(layers, source, target, share))
    return ticks


@kernel
def append(layers, space, node, s, times, sizes, by_span):
    """Account for stage s (its layers and its group are set) in row s + 1; returns a bound on all plans that begin so.

    Every device: earliest start, all its work and the least synchronisation; every stage: earliest start, its F and I,
    and the I of the stages before it.
    """
    g = node.arc[s, 2]
    r, count = space.group_size[g], layers.options[MICROBATCHES]
    stage_work(layers, space, node, s, times, sizes)
    for rows in (node.load, node.begin, node.sync, node.room, node.need, node.held):
        rows[s + 1] = rows[s]
    arrival, tail = np.int64(0), np.int64(0)
    for p in range(s):
        ticks = least_transfer(layers, space, node, p, s, 0)
        if ticks >= 0:
            arrival = max(arrival, node.head[p] + ticks)
            back = least_transfer(layers, space, node, p, s, 1)
            if back >= 0:
                tail = max(tail, back + node.returning[p] + node.tail[p])
    sync = np.int64(0)
    if r > 1 and sizes[4] > 0:
        sync = ring_ticks(layers, sizes[4], space.group[g, :r])
    node.head[s], node.returning[s] = np.int64(FAR), np.int64(FAR)
    floor, least_rest, load = np.int64(0), np.int64(FAR), np.int64(0)
    for x in range(r):
        t = layers.device_type[space.group[g, x]]
        node.head[s] = min(node.head[s], arrival + times[t, 0])
        node.returning[s] = min(node.returning[s], times[t, 1])
        least_rest = min(least_rest, times[t, 2])
    node.tail[s] = max(tail, least_rest + sync)
    for x in range(r):
        d = space.group[g, x]
        t = layers.device_type[d]
        node.load[s + 1, d] += count * (times[t, 0] + times[t, 1] + times[t, 2])
        node.begin[s + 1, d] = min(node.begin[s, d], arrival)
        node.sync[s + 1, d] = min(node.sync[s, d], sync)
        node.held[s + 1, d] += 1
        node.room[s + 1, d] -= sizes[0]
        node.need[s + 1, d] = max(node.need[s, d], max(sizes[1], sizes[2]) + sizes[3])
        if node.need[s + 1, d] > node.room[s + 1, d]:
            return np.int64(FAR)
        floor = max(floor, arrival + count * (times[t, 0] + times[t, 1]) + node.tail[s])
        floor = max(floor, arrival + count * (times[t, 0] + times[t, 1] + times[t, 2]) + sync)
        floor = max(floor, node.begin[s + 1, d] + node.load[s + 1, d])
        load = max(load, node.load[s + 1, d])
    return load if by_span else floor + layers.options[TAIL]


@kernel
def has_room(layers, rules, space, node, s, threshold, by_span):
    """Whether the device time left below the threshold holds all layers that are not in stages 0 to s."""
    num_layers, num_devices = node.stage_of.shape[0], layers.capacity.shape[0]
    begin, tail, left, left_before = np.int64(FAR), np.int64(FAR), np.int64(0), np.int64(0)
    for x in range(num_layers):
        if node.stage_of[x] < 0:
            left += space.least_work[0, x]
            left_before += space.least_work[1, x]
            is_next, head, follow = True, np.int64(0), np.int64(0)
            for e in range(layers.edges.shape[0]):
                if layers.edges[e, 1] == x:
                    p = node.stage_of[layers.edges[e, 0]]
                    if p < 0:
                        is_next = False
                        break
                    head = max(head, node.head[p])
                    follow = max(follow, node.returning[p] + node.tail[p])
            if is_next:
                begin, tail = min(begin, head), min(tail, follow)
    if left == 0:
        return True
    end = threshold - 1 - layers.options[TAIL]
    if by_span:
        begin, end = np.int64(0), threshold - 1
    if by_span or space.all_gradients[0] == 0:
        tail = np.int64(0)
    offered, offered_before = np.int64(0), np.int64(0)
    for device in range(num_devices):
        if layers.member_start[device + 1] - layers.member_start[device] > 1:
            break  # groups come last; their time is that of their members
        d = owner_of(layers, node, s + 1, device) if rules[WIDTHS] else device
        if node.held[s + 1, d] < rules[MAX_STAGES]:
            time = end - min(begin, 0 if by_span else node.begin[s + 1, d])
            price = space.weight[layers.device_type[device]]
            offered += price * max(0, time - node.load[s + 1, d])
            offered_before += price * max(0, min(time - tail, time - node.load[s + 1, d]))
    count = layers.options[MICROBATCHES]
    return count * left <= offered and count * left_before <= offered_before


@kernel
def leaf_floor(layers, rules, pinned, space, node, s, threshold, start, devices, by_span):
    """A bound on every order of a complete plan; FAR if it breaks a rule or does not fit."""
    count = 0
    for k in range(s + 1):
        g = node.arc[k, 2]
        start[k] = count
        for x in range(space.group_size[g]):
            devices[count] = space.group[g, x]
            count += 1
    start[s + 1] = count
    if not is_allowed(layers, rules, pinned, node.stage_of, start[: s + 2], devices[:count]):
        return np.int64(FAR)
    net = assemble(layers, node.stage_of, start[: s + 2], devices[:count], node.arc[: s + 1, 3].copy())
    if overflow(net) > 0:
        return np.int64(FAR)
    if by_span:
        return np.max(node.load[s + 1])
    floor = net_floor(net)
    if floor < threshold and count <= MAX_LANES and layers.options[MICROBATCHES] <= MAX_RANKS:
        floor = max(floor, schedule_floor(net, threshold))
    return floor


@kernel
def find_cases(layers, rules, pinned, space, by_span, threshold, most_nodes, most_cases, stop):
    """[cases, 1 + L + 2 S] floor, stage of every layer, group and flag per stage (-1: none); and nodes looked at.

    The number of nodes is `most_nodes` if that, or `most_cases`, was not enough, or if `stop` was set.
    """
    num_layers, num_devices = layers.trainable.shape[0], layers.capacity.shape[0]
    num_types, last = layers.work.shape[2], space.downset.shape[0] - 1
    most_stages = min(num_layers, num_devices * rules[MAX_STAGES])
    node = make_node(num_layers, num_devices, most_stages, layers.capacity)
    times, sizes = np.zeros((num_types, 3), np.int64), np.zeros(5, np.int64)
    start, devices = np.zeros(most_stages + 1, np.int64), np.zeros(most_stages * num_devices, np.int64)
    found, count, nodes, s = np.full((64, 1 + num_layers + 2 * most_stages), -1, np.int64), 0, 0, 0
    node.arc[0, 1], node.arc[0, 2] = space.arc_start[0], space.group_start[0, 0] - 1
    node.arc[0, 3] = 1 if rules[RECOMPUTE] else 0
    place(space, node, 0)
    while s >= 0:
        row = min(s, space.group_start.shape[0] - 1)
        if not next_choice(rules, space, node, s, space.group_start[row]):
            unplace(node, s)
            s -= 1
            continue
        nodes += 1
        if nodes >= most_nodes or stop[0] != 0:
            return found[:count], most_nodes
        if not keeps_rules(layers, rules, pinned, space, node, s) or not is_first_of_its_kind(space, node, s):
            continue
        floor = append(layers, space, node, s, times, sizes, by_span)
        if floor >= threshold:
            continue
        reached = space.arc_end[node.arc[s, 1]]
        if reached == last:
            floor = leaf_floor(layers, rules, pinned, space, node, s, threshold, start, devices, by_span)
            if floor >= threshold:
                continue
            if count == most_cases:
                return found[:count], most_nodes
            if count == found.shape[0]:
                found = np.concatenate((found, np.full(found.shape, np.int64(-1))))
            found[count, 0] = floor
            found[count, 1 : num_layers + 1] = node.stage_of
            found[count, num_layers + 1 : num_layers + 2 + s] = node.arc[: s + 1, 2]
            found[count, num_layers + 1 + most_stages : num_layers + 2 + most_stages + s] = node.arc[: s + 1, 3]
            count += 1
        elif s + 1 < most_stages and has_room(layers, rules, space, node, s, threshold, by_span):
            s += 1
            row = min(s, space.group_start.shape[0] - 1)
            node.arc[s, 0], node.arc[s, 1] = reached, space.arc_start[reached]
            node.arc[s, 2] = space.group_start[row, 0] - 1
            node.arc[s, 3] = 1 if rules[RECOMPUTE] else 0
            place(space, node, s)
    return found[:count], nodes


@kernel
def place(space, node, s):
    """Give stage s the layers of its arc."""
    new = space.downset[space.arc_end[node.arc[s, 1]]] & ~space.downset[node.arc[s, 0]]
    for x in range(node.stage_of.shape[0]):
        if new >> x & 1:
            node.stage_of[x] = s


@kernel
def unplace(node, s):
    """Take the layers of stage s back."""
    for x in range(node.stage_of.shape[0]):
        if node.stage_of[x] == s:
            node.stage_of[x] = -1


@kernel
def next_choice(rules, space, node, s, groups):
    """Move on to the next flag, group or arc of stage s; False if there is none left."""
    if rules[RECOMPUTE] and node.arc[s, 3] == 0:
        node.arc[s, 3] = 1
        return True
    node.arc[s, 3] = 0
    node.arc[s, 2] += 1
    if node.arc[s, 2] < groups[1]:
        return True
    node.arc[s, 2] = groups[0]
    unplace(node, s)
    node.arc[s, 1] += 1
    if node.arc[s, 1] == space.arc_start[node.arc[s, 0] + 1]:
        return False
    place(space, node, s)
    return True
