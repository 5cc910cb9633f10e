"""Compiled: the stages that a time per sample allows, and the fewest devices that cover the layers with them.

A *suffix* is a set of layers closed under consumers; a stage is the difference of two suffixes (a *pair*).
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Flags, Floats, Integers, ShortIntegers
from solver_models.simulation.columns import SOURCE, TARGET

PLAIN, RECOMPUTED = 0, 1
"""Variants of a layer: without and with recomputation."""

EXTRA, GROWING, FIXED = range(3)
"""Columns of a choice of recomputing layers: extra seconds, growing and fixed bytes."""

DEPTH = 1
"""Column of rows of `deepest`, after `EXTRA`: microbatches in flight."""

OUTER, INNER = 0, 1
"""Columns of a pair of suffixes."""

PRODUCER_SIDE, CONSUMER_SIDE = 0, 1
"""Rows of what crosses the end of a stage."""

SHRINKING, SYNCHRONISING = 0, 1
"""Seconds of a pair: those that replicas share, and those of their synchronisation."""

PAIR, WIDTH, REPLICAS, SUM_BEFORE = range(4)
"""Columns of the stage that was put in front."""

BIG = 1 << 30
"""More devices than any problem has."""


class LayerCosts(NamedTuple):
    """What layers cost at every width: seconds and bytes per sample."""

    seconds: Floats
    """[W, 2, L] compute, without and with recomputation."""
    extra: Floats
    """[W, L] more seconds with recomputation; inf where that was not measured."""
    growing: Floats
    """[W, 2, L] bytes per microbatch in flight."""
    fixed: Floats
    """[W, 2, L] bytes held in any case."""
    weights: Floats
    """[W, L] bytes that replicas synchronise."""


class RecomputationChoices(NamedTuple):
    """Which layers may recompute at every width, and in which order."""

    order: Integers
    """[W, X] layers by group, then by extra seconds."""
    num_ordered: Integers
    """[W] how many of them there are."""
    group: Integers
    """[W, L] layers of a group save the same bytes."""
    most_points: int
    """Combinations of recomputing layers that a stage may have."""


class StageBoundaries(NamedTuple):
    """What moves between stages, and between the replicas of one."""

    edges: Integers
    """[E, 2] producer and consumer."""
    crossing: Floats
    """[W, 2, E] bytes that the producer's stage and the consumer's stage move."""
    seconds_per_byte: float
    """Of what crosses a boundary."""
    seconds_per_weight: float
    """Of a byte that replicas synchronise."""


class PairTables(NamedTuple):
    """What the P pairs of suffixes cost as stages."""

    pairs: Integers
    """[P, 2] a suffix and a smaller one inside it, by the first."""
    first_pair: Integers
    """[I + 1] where the pairs of a suffix begin."""
    base: Floats
    """[P, W, 2] seconds that shrink with the replicas, and seconds of their synchronisation; inf: not measured."""
    start: Integers
    """[P * W + 1] where the rows of a pair and a width begin in `rows`."""
    rows: Floats
    """[., 2] extra seconds and the most microbatches in flight that they buy (`deepest`)."""


@kernel
def stage_points(
    inside: Flags, order: Integers, group: Integers, extra: Floats, growing: Floats, fixed: Floats, most_points: int
) -> Floats:
    """[points, 3] extra seconds, growing and fixed bytes of every sensible choice of layers that recompute.

    Layers of one group save the same bytes, so that the cheapest of them go first: a choice is a count per group.
    Row 0 is no recomputation. None of it is valid if there are more than `most_points`: an empty table then.
    """
    points = np.zeros((1, 3), np.float64)
    for x in range(inside.shape[0]):
        if inside[x]:
            points[0, GROWING] += growing[PLAIN, x]
            points[0, FIXED] += fixed[PLAIN, x]
    k = 0
    while k < order.shape[0]:
        here = group[order[k]]
        steps = np.zeros((order.shape[0] + 1, 3), np.float64)
        count = 1
        while k < order.shape[0] and group[order[k]] == here:
            x = order[k]
            if inside[x]:
                steps[count, EXTRA] = steps[count - 1, EXTRA] + extra[x]
                steps[count, GROWING] = steps[count - 1, GROWING] + growing[RECOMPUTED, x] - growing[PLAIN, x]
                steps[count, FIXED] = steps[count - 1, FIXED] + fixed[RECOMPUTED, x] - fixed[PLAIN, x]
                count += 1
            k += 1
        if count == 1:
            continue
        if points.shape[0] * count > most_points:
            return np.zeros((0, 3), np.float64)
        wider = np.empty((points.shape[0] * count, 3), np.float64)
        for i in range(points.shape[0]):
            for j in range(count):
                wider[i * count + j] = points[i] + steps[j]
        points = wider
    return points


@kernel
def deepest(points: Floats, memory: float, most: int) -> Floats:
    """[kept, 2] extra seconds and the most microbatches in flight that they buy, both strictly increasing."""
    kept = np.empty((points.shape[0], 2), np.float64)
    count, best = 0, 0
    for i in np.argsort(points[:, EXTRA]):
        if points[i, FIXED] > memory:
            continue
        depth = most
        if points[i, GROWING] * most > memory - points[i, FIXED]:
            depth = int((memory - points[i, FIXED]) // points[i, GROWING])
        if depth > best:
            best = depth
            kept[count, EXTRA], kept[count, DEPTH] = points[i, EXTRA], depth
            count += 1
    return kept[:count]


@kernel
def pair_tables(
    member: Flags,
    pairs: Integers,
    costs: LayerCosts,
    choices: RecomputationChoices,
    boundaries: StageBoundaries,
    memory: float,
    most: int,
) -> tuple[Floats, Integers, Floats, bool]:
    """`base`, `start` and `rows` of `PairTables`, and whether no stage had too many points.

    `member` [I, L]: whether a layer is in a suffix; `most`: microbatches in flight.
    """
    seconds, edges, crossing = costs.seconds, boundaries.edges, boundaries.crossing
    num_pairs, num_widths, num_layers = pairs.shape[0], seconds.shape[0], seconds.shape[2]
    base = np.full((num_pairs, num_widths, 2), np.inf)
    start = np.zeros(num_pairs * num_widths + 1, np.int64)
    rows = np.empty((1024, 2), np.float64)
    count, is_complete = 0, True
    inside = np.zeros(num_layers, np.bool_)
    for p in range(num_pairs):
        for x in range(num_layers):
            inside[x] = member[pairs[p, OUTER], x] and not member[pairs[p, INNER], x]
        for w in range(num_widths):
            compute, synchronised, moved = 0.0, 0.0, 0.0
            for x in range(num_layers):
                if inside[x]:
                    compute += seconds[w, PLAIN, x]
                    synchronised += costs.weights[w, x]
            for e in range(edges.shape[0]):
                if inside[edges[e, SOURCE]] and not inside[edges[e, TARGET]]:
                    moved += crossing[w, PRODUCER_SIDE, e]
                elif inside[edges[e, TARGET]] and not inside[edges[e, SOURCE]]:
                    moved += crossing[w, CONSUMER_SIDE, e]
            if compute < np.inf:
                base[p, w, SHRINKING] = compute + moved * boundaries.seconds_per_byte
                base[p, w, SYNCHRONISING] = synchronised * boundaries.seconds_per_weight
                points = stage_points(
                    inside, choices.order[w, : choices.num_ordered[w]], choices.group[w],
                    costs.extra[w], costs.growing[w], costs.fixed[w], choices.most_points,
                )  # fmt: skip
                is_complete = is_complete and points.shape[0] > 0
                found = deepest(points, memory, most)
                while count + found.shape[0] > rows.shape[0]:
                    rows = np.concatenate((rows, np.empty_like(rows)))
                rows[count : count + found.shape[0]] = found
                count += found.shape[0]
            start[p * num_widths + w + 1] = count
    return base, start, rows[:count], is_complete


@kernel
def deepest_within(rows: Floats, first: int, end: int, allowance: float) -> int:
    """Most microbatches in flight that at most `allowance` extra seconds buy."""
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if rows[middle, EXTRA] <= allowance:
            low = middle + 1
        else:
            high = middle
    return int(rows[low - 1, DEPTH]) if low > first else 0


@kernel
def cover(
    limit: float,
    tables: PairTables,
    widths: Integers,
    replicas: Integers,
    work_before: Floats,
    num_devices: int,
    most_replicas: int,
) -> tuple[Integers, ShortIntegers]:
    """The fewest devices for every suffix, by its sum of replicas, if no stage may take longer than `limit` per sample.

    Returns [I, S + 1] devices (BIG where a smaller sum is as good or there is no way), and [I, S + 1, 4] pair, width,
    replicas and the sum before of the stage that was put in front. Suffixes whose producers cannot fit any more into
    the other devices, by their work alone (`work_before` [I] device seconds), are left out.
    """
    pairs, first_pair, base, start, rows = tables
    num_suffixes, num_widths = work_before.shape[0], widths.shape[0]
    need = np.full((num_suffixes, most_replicas + 1), BIG, np.int64)
    choice = np.full((num_suffixes, most_replicas + 1, SUM_BEFORE + 1), -1, np.int32)
    steps = np.zeros((num_suffixes, most_replicas + 1), np.int64)
    num_steps = np.zeros(num_suffixes, np.int64)
    need[0, 0], num_steps[0] = 0, 1
    for i in range(1, num_suffixes):
        room = num_devices - int(np.ceil(work_before[i] / limit - 1e-6))  # rounding never costs a device
        for p in range(first_pair[i], first_pair[i + 1]):
            sub = pairs[p, INNER]
            for w in range(num_widths):
                if num_steps[sub] == 0 or base[p, w, SHRINKING] == np.inf:
                    continue
                for n in range(replicas.shape[0]):
                    r = replicas[n]
                    cost = r * widths[w]
                    if cost > room:
                        break
                    allowance = limit * r - base[p, w, SHRINKING] - base[p, w, SYNCHRONISING] * (r - 1)
                    if allowance < 0:
                        continue
                    at = p * num_widths + w
                    most = min(most_replicas, r * deepest_within(rows, start[at], start[at + 1], allowance))
                    for k in range(num_steps[sub]):
                        s = steps[sub, k]
                        if s + r > most:
                            break
                        devices = need[sub, s] + cost
                        if devices <= room and devices < need[i, s + r]:
                            need[i, s + r] = devices
                            choice[i, s + r, PAIR], choice[i, s + r, WIDTH] = p, w
                            choice[i, s + r, REPLICAS], choice[i, s + r, SUM_BEFORE] = r, s
        least = BIG
        for s in range(most_replicas + 1):
            if need[i, s] < least:
                least = need[i, s]
                steps[i, num_steps[i]] = s
                num_steps[i] += 1
            else:
                need[i, s] = BIG
    return need, choice
