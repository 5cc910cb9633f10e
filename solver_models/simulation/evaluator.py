"""The compiled evaluator: a partition, a mapping and an order (or a policy that makes one) to times and memory.

`assemble` adds layers up to stage replicas and transfers, `play` runs them event by event under the rules of the
contract on time and memory. Everything is an array of integers; the search takes microbatches in order in every stage
replica, so that counters describe the state. Who wants the time of every action and transfer of any schedule gives
`play` a `Recording` (`recorded_play` makes it).
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import KIND, MEMORY, placed
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Flags, Integers, Layers, ShortIntegers
from solver_models.simulation.columns import (
    ACTIVATIONS,
    BACKWARD_SIZE,
    CHECKPOINT_ROW,
    CUT,
    CUT_GRADIENT,
    CUT_WEIGHTS,
    DIRECTION,
    DRAIN_PART,
    FIRST,
    FORWARD_PART,
    FORWARD_SIZE,
    GRADIENT,
    GRADIENT_PART,
    GRADIENTS,
    HAS_GRADIENT,
    HAS_WEIGHT,
    HELD,
    NUM_TRAINED,
    OPTIMIZER_ROW,
    RANK,
    RECEIVER,
    RECOMPUTATION,
    RECOMPUTING,
    REPLICA_HAS_WEIGHT,
    REPLICA_HELD,
    REPLICA_NUMBER,
    REPLICA_STAGE,
    REPLICA_STASH,
    REPLICA_WEIGHT_WORKSPACE,
    REPLICA_WHOLE_BACKWARD,
    REPLICA_WORKSPACE,
    REST_PART,
    ROUTE,
    SECOND,
    SENDER,
    SHARDABLE,
    SHARDABLE_ROW,
    SHARDING,
    SHARED,
    SHARERS,
    SOURCE,
    STASH,
    STASH_ONCE,
    STASH_ROW,
    STATE,
    STATE_ONCE,
    STATE_ROW,
    STATED,
    STEP,
    TARGET,
    TICKS,
    WEIGHT_PART,
    WEIGHT_STASH,
    WEIGHT_STASH_ONCE,
    WEIGHT_STASH_ROW,
    WEIGHT_WORKSPACE,
    WEIGHTS,
    WHOLE_BACKWARD,
    WORKSPACE,
    WORKSPACE_ROW,
)
from solver_models.simulation.event_heap import (
    AHEAD,
    ARRIVAL,
    CLOCK,
    FIRST_SEND,
    KEY,
    NEXT,
    NOW,
    RESUME,
    SEND,
    TIME,
    event_key,
    event_of,
    heap_pop,
    heap_push,
    make_heap,
)
from solver_models.simulation.host_clock import CROSS, HOST, card_ticks, make_hosts, note_end
from solver_models.simulation.preferences import NO_RULE, Preference, note_arrival, prefer

FAR = 1 << 61
"""Time of something that never happens."""


class Net(NamedTuple):
    """N stage replicas (replicas of S stages, by stage) and the P transfers between them, ready to be played."""

    replica_stage: Integers
    """[N] stage."""
    replica_device: Integers
    """[N] device."""
    duration: Integers
    """[N, 4] ticks of F, I, W, B."""
    host: Integers
    """[N, 4, 2] ticks that the host takes to ask for them, and from its beginning to their end at least; empty where
    that takes no time."""
    has_weight: Integers
    """[N] 1 if there is a W."""
    held: Integers
    """[N] units from the start of F to the end of I or B."""
    stash: Integers
    """[N] units while I runs."""
    whole_backward: Integers
    """[N] units while B runs."""
    weight_stash: Integers
    """[N] units from the end of I to the end of W."""
    workspace: Integers
    """[N] units while F, I or B runs."""
    weight_workspace: Integers
    """[N] units while W runs."""
    device_start: Integers
    """[D + 1] where the stage replicas of a device begin in `device_replicas`."""
    device_replicas: Integers
    """[N] stage replicas, by device, then by stage."""
    devices: Integers
    """[D, columns] what stages leave of them (`DeviceRow.placed`)."""
    transfer_start: Integers
    """[2 * N + 1] where the transfers of an outlet begin: of replica n in direction w (0 forward, 1 backward), 2 * n +
    w."""
    transfer_direction: Integers
    """[P] direction."""
    transfer_target: Integers
    """[P] receiving stage replica."""
    transfer_duration: Integers
    """[P] ticks."""
    transfer_route: Integers
    """[P] index into `route_start`, or -1 inside a device."""
    transfer_shared: Integers
    """[P] 1 if another transfer uses one of its links, or it holds devices."""
    num_inputs: Integers
    """[N] forward transfers that arrive per microbatch."""
    num_gradients: Integers
    """[N] backward transfers that arrive per microbatch."""
    route_start: Integers
    """As in `Layers`."""
    route_links: Integers
    """As in `Layers`."""
    synchronisation: Integers
    """[S] ticks of the all-reduce, or reduce-scatter, after the stage's last action."""
    scalars: Integers
    """`options` of `Layers`, with the tail of this plan."""


class NetReplicas(NamedTuple):
    """The N stage replicas of a plan and what it leaves of every device; transfers between them are not known yet."""

    stage: Integers
    """[N] stage."""
    device: Integers
    """[N] device."""
    duration: Integers
    """[N, 4] ticks of F, I, W, B."""
    host: Integers
    """[N, 4, 2] as in `Net`."""
    size: Integers
    """[7, N] units and flags of a stage's sizes, the first of `columns`, shared out to its replicas."""
    devices: Integers
    """[D, columns] what stages leave of them."""
    synchronisation: Integers
    """[S] ticks of the all-reduce, or reduce-scatter, after the stage's last action."""
    scalars: Integers
    """`options` of `Layers`, where what the slowest device does after everything else is added to the tail."""


class Policy(NamedTuple):
    """Priorities and caps by which a list schedule chooses."""

    cap: Integers
    """[N] most microbatches between F and I."""
    lag: Integers
    """[D] W are put off until so many wait."""
    mode: Integers
    """[D] sum of the bits below."""
    preference: Preference | None
    """A published rule that chooses in place of these; numba compiles `play` for either, as for a recording."""


class Orders(NamedTuple):
    """The order of every device, and how far it has come."""

    device_orders: ShortIntegers
    """[D, longest] replica * 4 + kind."""
    lengths: Integers
    """[D] actions."""
    position: Integers
    """[D] actions that have started."""
    busy: Flags
    """[D] whether one of them has not ended."""


class _Transit(NamedTuple):
    """What is under way between the stage replicas."""

    heap: Integers
    """Events that lie ahead (`event_heap`)."""
    link_free: Integers
    """[K] when the last transfer so far leaves the link."""
    missing: ShortIntegers
    """[N, 2, M] inputs and gradients that have yet to arrive."""


class _Waits(NamedTuple):
    """What few nets wait for: devices that transfers hold, and hosts. numba compiles `_run` with it and without."""

    until: Integers
    """[D] when the device has ended what it runs, sends or receives; empty where it computes meanwhile."""
    sender: Integers
    """[P] stage replica that sends; -1 where links alone are held, and empty as well."""
    hosts: Integers
    """[D, HOST_COLUMNS] what `card_ticks` knows of the devices; empty where hosts take no time."""


class Recording(NamedTuple):
    """What a schedule needs that is not of the search's making, and the times it leaves behind.

    The search records nothing and gives None: numba compiles `play` for either, so that the search pays nothing.
    """

    microbatch: ShortIntegers
    """[D, longest] microbatch of every action of a device order."""
    duration: Integers
    """[D, longest] ticks that it takes; where the host takes time, at least, until it has started."""
    host: Integers
    """[D, longest, 2] ticks that the host takes to ask for it, and from its beginning to the end at least; empty where
    that takes no time."""
    hosts: Integers
    """[D, HOST_COLUMNS] what `card_ticks` knows of the devices; empty where hosts take no time."""
    start: Integers
    """[D, longest] when it began; -1 before."""
    missing: ShortIntegers
    """[N, 2, M + 1] inputs and gradients that have yet to arrive; in the last column those awaited once, by all."""
    sent: Integers
    """[P, M + 1] when every transfer began, -1 before; in the last column those that are sent once."""
    member_start: Integers
    """[N + 1] where the devices of a stage replica begin in `members`."""
    members: Integers
    """Devices that run the stage replica together; their device orders say so."""
    closing: Integers
    """[S, 2] actions that a stage has yet to end, and the stage replica whose gradients leave then, once; -1: none."""
    opening: Integers
    """Stage replicas whose activations leave at time 0, once."""
    gate: ShortIntegers
    """[D, longest] actions that each of the device's peers has ended before the action starts."""
    peer_start: Integers
    """[D + 1] where the peers of a device begin in `peers`."""
    peers: Integers
    """Devices that wait for each other's actions (`gate`); of most devices none."""


OPTIONS = (
    "num_microbatches", "num_links", "receive_buffers", "tail", "split_backward", "keep_workspace", "bucket_bytes",
    "plain_bucket_bytes", "reduction_bytes", "least_step", "recompute_in_turn", "stages_tail",
    "collective_occupancy", "transfers_hold",
)  # fmt: skip
"""Figures of the question, and names of its rules, that are `options` of Layers and `scalars` of Net."""

MICROBATCHES, LINKS, BUFFERS, TAIL, SPLIT, KEEPS_WORKSPACE = range(6)
BUCKET, PLAIN_BUCKET, REDUCTION, LEAST_STEP, ONE_BY_ONE, STAGES_TAIL, OCCUPANCY, HOLDS = range(6, len(OPTIONS))
"""Indices into them."""

LEFT, REPLICA = 0, 1
"""Columns of `Recording.closing`."""

FUSE, FORWARD_FIRST, DEPTH_FIRST = 1, 2, 4
"""Bits of `Policy.mode`: fuse I and W; F before I; deepest stage first."""


@kernel
def ceil_div(a: int, b: int) -> int:
    """The quotient a / b, rounded up."""
    return -((-a) // b)


@kernel
def _share_units(own: Integers, replicas: int, one_by_one: int, keeps_workspace: int) -> None:
    """Turn the sums of a stage's units, a row of its sizes, into what the actions of one of its replicas hold."""
    for k in range(HELD, WORKSPACE):
        own[k] = ceil_div(own[k], replicas)
    recomputed = ceil_div(own[WHOLE_BACKWARD], replicas)
    own[WHOLE_BACKWARD] = min(own[STASH], own[HELD] + recomputed) if one_by_one else own[STASH]
    own[WEIGHT_WORKSPACE] = own[WORKSPACE]
    if own[HAS_WEIGHT] == 0:
        own[WEIGHT_STASH] = 0
    elif keeps_workspace:
        own[WEIGHT_STASH] += own[WORKSPACE]
        own[WEIGHT_WORKSPACE] = 0


@kernel
def _count_once(layers: Layers, stage_of: Integers, width_row: Integers, modes: Integers, sizes: Integers) -> None:
    """Take off what pairs of layers hold once; a stage's weight stash is at most its stash. `width_row` [S]."""
    for p in range(layers.together.shape[0]):
        s = stage_of[layers.together[p, FIRST]]
        if s != stage_of[layers.together[p, SECOND]] or width_row[s] > 0:
            continue
        if not modes[s] & SHARDING:
            sizes[s, STATE] -= layers.together[p, STATE_ONCE]
        if not modes[s] & RECOMPUTING:
            sizes[s, HELD] -= layers.together[p, STASH_ONCE]
            sizes[s, STASH] -= layers.together[p, STASH_ONCE]
            sizes[s, WEIGHT_STASH] -= layers.together[p, WEIGHT_STASH_ONCE]
    for s in range(sizes.shape[0]):
        sizes[s, WEIGHT_STASH] = min(sizes[s, WEIGHT_STASH], sizes[s, STASH])


@kernel
def stage_sums(
    layers: Layers, stage_of: Integers, start: Integers, devices: Integers, modes: Integers
) -> tuple[Integers, Integers]:
    """[S, T, 5] ticks of F, I, W, B and a step on the types of its devices; [S, 15] units and flags of every stage.

    `modes` [S] bits as in `columns`.
    """
    num_stages, num_layers, num_types = start.shape[0] - 1, stage_of.shape[0], layers.work.shape[2]
    replicas = start[1:] - start[:-1]
    used = np.zeros((num_stages, num_types), np.bool_)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            used[s, layers.devices[devices[n], KIND]] = True
    times = np.zeros((num_stages, num_types, STEP + 1), np.int64)
    sizes = np.zeros((num_stages, SHARERS + 1), np.int64)
    for x in range(num_layers):
        s = stage_of[x]
        v = layers.width_row[devices[start[s]]]
        table = layers.table_of_replicas[replicas[s]]
        for t in range(num_types):
            if not used[s, t]:
                continue
            extra = layers.work[table, RECOMPUTATION, t, x] if modes[s] & RECOMPUTING else 0
            times[s, t, FORWARD] += layers.work[table, FORWARD, t, x]
            times[s, t, INPUT_GRAD] += layers.work[table, INPUT_GRAD, t, x] + extra
            times[s, t, WEIGHT_GRAD] += layers.work[table, WEIGHT_GRAD, t, x]
            times[s, t, BACKWARD] += layers.work[table, BACKWARD, t, x] + extra
            times[s, t, STEP] += layers.once[OPTIMIZER_ROW, t, x]
        sizes[s, STATE] += layers.sizes[v, STATE_ROW, x]
        held = layers.sizes[v, CHECKPOINT_ROW if modes[s] & RECOMPUTING else STASH_ROW, x]
        sizes[s, HELD] += held
        sizes[s, STASH] += layers.sizes[v, STASH_ROW, x]
        sizes[s, WHOLE_BACKWARD] = max(sizes[s, WHOLE_BACKWARD], layers.sizes[v, STASH_ROW, x] - held)
        sizes[s, WEIGHT_STASH] += layers.sizes[v, WEIGHT_STASH_ROW, x]
        sizes[s, WORKSPACE] = max(sizes[s, WORKSPACE], layers.sizes[v, WORKSPACE_ROW, x])
        sizes[s, HAS_WEIGHT] = max(sizes[s, HAS_WEIGHT], layers.trainable[x])
        sizes[s, GRADIENT] += layers.gradient[v, STATED, x]
        sizes[s, NUM_TRAINED] += 1 - layers.frozen[x]
        sizes[s, CUT_GRADIENT] += layers.gradient[v, CUT, x]
        sizes[s, WEIGHTS] += layers.weights[v, STATED, x]
        sizes[s, CUT_WEIGHTS] += layers.weights[v, CUT, x]
        sizes[s, SHARDABLE] += layers.sizes[v, SHARDABLE_ROW, x]
    _count_once(layers, stage_of, layers.width_row[devices[start[:-1]]], modes, sizes)
    for s in range(num_stages):
        for t in range(num_types):
            for k in range(FORWARD, BACKWARD + 1):
                times[s, t, k] = ceil_div(times[s, t, k], replicas[s])
        _share_units(sizes[s], replicas[s], layers.options[ONE_BY_ONE], layers.options[KEEPS_WORKSPACE])
        sizes[s, SHARERS] = replicas[s] if modes[s] & SHARDING else 1
        sizes[s, STATE] += ceil_div(sizes[s, SHARDABLE], sizes[s, SHARERS]) - sizes[s, SHARDABLE]
        group = devices[start[s]]
        width = layers.member_start[group + 1] - layers.member_start[group]
        sizes[s, GRADIENT] += ceil_div(sizes[s, CUT_GRADIENT], width)
        sizes[s, WEIGHTS] += ceil_div(sizes[s, CUT_WEIGHTS], width)
    return times, sizes


@kernel
def _add_hosts(
    layers: Layers, stage_of: Integers, start: Integers, devices: Integers, modes: Integers, found: Integers
) -> None:
    """Write `Net.host` of the replicas of all stages: layers in a row are the product of their max-plus matrices.

    F goes through the layers forwards, the others backwards, with the recomputation of a layer right before its I or B.
    """
    overhead = layers.overhead[1 if start.shape[0] > 2 else 0]
    for s in range(start.shape[0] - 1 if found.shape[0] > 0 else 0):
        replicas = start[s + 1] - start[s]
        table = layers.table_of_replicas[replicas]
        for n in range(start[s], start[s + 1]):
            t = layers.devices[devices[n], KIND]
            for kind in range(BACKWARD + 1):
                host, cross = int64(0), int64(0)
                for y in range(stage_of.shape[0]):
                    x = y if kind == FORWARD else stage_of.shape[0] - 1 - y
                    if stage_of[x] != s:
                        continue
                    for row in (RECOMPUTATION, kind):
                        if row == RECOMPUTATION and not (modes[s] & RECOMPUTING and kind in (INPUT_GRAD, BACKWARD)):
                            continue
                        work = layers.work[table, row, t, x]
                        cross = max(cross + work, host + layers.host[CROSS, table, row, t, x])
                        host += layers.host[HOST, table, row, t, x]
                found[n, kind, HOST] = ceil_div(host, replicas) + overhead[t, kind]
                found[n, kind, CROSS] = ceil_div(cross, replicas) + overhead[t, kind]


@kernel
def stage_traffic(layers: Layers, stage_of: Integers, num_stages: int) -> Integers:
    """[P, 6] sender stage, receiver stage, forward units, backward units, gradient flag, rank of the first edge.

    In order of that rank, as the simulator serves transfers that are ready together.
    """
    edges = layers.edges
    pair_of = np.full(num_stages * num_stages, -1, np.int64)
    pairs = np.zeros((min(edges.shape[0], num_stages * num_stages), 6), np.int64)
    last_producer = np.full(pairs.shape[0], -1, np.int64)
    last = np.zeros((pairs.shape[0], 2), np.int64)
    count = 0
    for e in range(edges.shape[0]):
        a, b = stage_of[edges[e, SOURCE]], stage_of[edges[e, TARGET]]
        if a == b:
            continue
        p = pair_of[a * num_stages + b]
        if p < 0:
            p = count
            count += 1
            pair_of[a * num_stages + b] = p
            pairs[p, SOURCE], pairs[p, TARGET], pairs[p, RANK] = a, b, edges[e, RANK]
        if last_producer[p] != edges[e, SOURCE]:
            last_producer[p] = edges[e, SOURCE]
            last[p, ACTIVATIONS], last[p, GRADIENTS] = 0, 0
        forward = max(last[p, ACTIVATIONS], edges[e, FORWARD_SIZE])
        backward = max(last[p, GRADIENTS], edges[e, BACKWARD_SIZE])
        pairs[p, FORWARD_SIZE] += forward - last[p, ACTIVATIONS]
        pairs[p, BACKWARD_SIZE] += backward - last[p, GRADIENTS]
        last[p, ACTIVATIONS], last[p, GRADIENTS] = forward, backward
        pairs[p, HAS_GRADIENT] = max(pairs[p, HAS_GRADIENT], edges[e, HAS_GRADIENT])
        pairs[p, RANK] = min(pairs[p, RANK], edges[e, RANK])
    for p in range(1, count):
        if pairs[p, RANK] < pairs[p - 1, RANK]:
            return pairs[np.argsort(pairs[:count, RANK])]
    return pairs[:count]


@kernel
def ticks_for(size: int, bandwidth: int) -> int:
    """10**9 * size / bandwidth rounded up, without overflow for bandwidths below 9e15."""
    quotient, rest = size // bandwidth, size % bandwidth
    for _ in range(3):
        rest *= 1000
        quotient = quotient * 1000 + rest // bandwidth
        rest %= bandwidth
    return quotient + (1 if rest > 0 else 0)


@kernel
def _ring_ticks(layers: Layers, size: int, devices: Integers, rounds: int) -> int:
    """All-reduce (2 rounds), or reduce-scatter or all-gather (1), of `size` units over `devices` as listed."""
    r = devices.shape[0]
    slowest, latency = FAR, 0
    for i in range(r):
        a, b = devices[i], devices[(i + 1) % r]
        slowest = min(slowest, layers.bandwidth[a, b])
        latency = max(latency, layers.latency[a, b])
    return ticks_for(rounds * (r - 1) * size, r * slowest) + rounds * (r - 1) * latency


@kernel
def transfer_ticks(layers: Layers, a: int, b: int, size: int) -> int:
    """Ticks of a transfer of `size` units between two different devices."""
    return layers.latency[a, b] + ticks_for(size, layers.bandwidth[a, b])


@kernel
def _make_transfers(layers: Layers, pairs: Integers, start: Integers, devices: Integers) -> Integers:
    """[P', 5] sender stage replica, receiver stage replica, is backward, ticks, route index (-1 inside a device),
    unsorted.

    Stage replica `start[s] + j` is replica j of stage s; stage replicas that share samples of a microbatch are
    connected. What takes no time occupies nothing: its route is the empty one from the source to itself.
    """
    count = 0
    for p in range(pairs.shape[0]):
        a, b = pairs[p, SOURCE], pairs[p, TARGET]
        count += 2 * (start[a + 1] - start[a] + start[b + 1] - start[b])
    transfers = np.zeros((count, 5), np.int64)
    num_devices = layers.devices.shape[0]
    count = 0
    for p in range(pairs.shape[0]):
        a, b = pairs[p, SOURCE], pairs[p, TARGET]
        ra, rb = start[a + 1] - start[a], start[b + 1] - start[b]
        i, j = 0, 0
        while i < ra and j < rb:
            share = min((i + 1) * rb, (j + 1) * ra) - max(i * rb, j * ra)
            x, y = start[a] + i, start[b] + j
            dx, dy = devices[x], devices[y]
            for direction in range(2):
                if direction == 1 and pairs[p, HAS_GRADIENT] == 0:
                    continue
                source, target = (dx, dy) if direction == 0 else (dy, dx)
                transfers[count, SENDER], transfers[count, RECEIVER] = (x, y) if direction == 0 else (y, x)
                transfers[count, DIRECTION] = direction
                transfers[count, ROUTE] = -1
                if source != target:
                    size = ceil_div(pairs[p, FORWARD_SIZE + direction] * share, ra * rb)
                    transfers[count, TICKS] = transfer_ticks(layers, source, target, size)
                    transfers[count, ROUTE] = source * num_devices + (target if transfers[count, TICKS] > 0 else source)
                count += 1
            if (i + 1) * rb <= (j + 1) * ra:
                i += 1
                if i * rb == (j + 1) * ra:
                    j += 1
            else:
                j += 1
    return transfers[:count]


@kernel
def static_units(layers: Layers, pairs: Integers, sizes: Integers, start: Integers, devices: Integers) -> Integers:
    """[D] resident units: state, the most that reducing a stage's gradients takes, and receive buffers.

    A reduce-scatter has what is sent and what comes in its bucket.
    """
    static, bucket = np.zeros(layers.devices.shape[0], np.int64), np.zeros(layers.devices.shape[0], np.int64)
    for s in range(sizes.shape[0]):
        own = 0
        if sizes[s, SHARERS] > 1:
            own = layers.options[REDUCTION] + min(layers.options[BUCKET], 2 * sizes[s, GRADIENT])
        elif start[s + 1] - start[s] > 1:
            own = layers.options[REDUCTION] + min(layers.options[PLAIN_BUCKET], sizes[s, GRADIENT])
        for n in range(start[s], start[s + 1]):
            static[devices[n]] += sizes[s, STATE]
            bucket[devices[n]] = max(bucket[devices[n]], own)
    static += bucket
    for p in range(pairs.shape[0]):
        for direction in range(2):
            sender, receiver = (
                (pairs[p, SOURCE], pairs[p, TARGET]) if direction == 0 else (pairs[p, TARGET], pairs[p, SOURCE])
            )
            alone = start[sender + 1] - start[sender] == 1
            r = start[receiver + 1] - start[receiver]
            for n in range(start[receiver], start[receiver + 1]):
                if not (alone and devices[start[sender]] == devices[n]):
                    static[devices[n]] += ceil_div(layers.options[BUFFERS] * pairs[p, FORWARD_SIZE + direction], r)
    return static


@kernel
def make_replicas(
    layers: Layers,
    start: Integers,
    devices: Integers,
    times: Integers,
    sizes: Integers,
    left: Integers,
    num_more: int,
) -> NetReplicas:
    """The replicas of all stages, and room after them for `num_more` stage replicas, each a stage of its own."""
    num_stages, num_replicas = start.shape[0] - 1, devices.shape[0] + num_more
    replicas = NetReplicas(
        np.zeros(num_replicas, np.int64), np.zeros(num_replicas, np.int64), np.zeros((num_replicas, 4), np.int64),
        np.zeros((num_replicas if layers.host.shape[1] > 0 else 0, BACKWARD + 1, CROSS + 1), np.int64),
        np.zeros((HAS_WEIGHT + 1, num_replicas), np.int64), left,
        np.zeros(num_stages + num_more, np.int64),
        layers.options.copy(),
    )  # fmt: skip
    steps = np.zeros(left.shape[0], np.int64)
    for s in range(num_stages):
        for n in range(start[s], start[s + 1]):
            kind, d = layers.devices[devices[n], KIND], devices[n]
            replicas.stage[n], replicas.device[n] = s, d
            replicas.duration[n] = times[s, kind, :STEP] + layers.overhead[1 if num_stages > 1 else 0, kind]
            width = layers.member_start[d + 1] - layers.member_start[d]
            steps[d] += ceil_div(times[s, kind, STEP], width * sizes[s, SHARERS])
            for k in range(HELD, HAS_WEIGHT + 1):
                replicas.size[k, n] = sizes[s, k]
        if start[s + 1] - start[s] > 1 and sizes[s, NUM_TRAINED] > 0:
            rounds = 1 if sizes[s, SHARERS] > 1 else 2
            replicas.synchronisation[s] = _ring_ticks(
                layers, sizes[s, GRADIENT], devices[start[s] : start[s + 1]], rounds
            )
    _gather(layers, start, devices, sizes, steps)
    replicas.scalars[TAIL] += np.max(steps) + (layers.options[STAGES_TAIL] if num_stages > 1 else 0)
    return replicas


@kernel
def _gather(layers: Layers, start: Integers, devices: Integers, sizes: Integers, ready: Integers) -> None:
    """Let sharded stages gather their weights one after the other, each once all its devices are `ready` [D]."""
    for s in range(sizes.shape[0]):
        if sizes[s, SHARERS] > 1:
            own = devices[start[s] : start[s + 1]]
            end = np.max(ready[own])
            if sizes[s, NUM_TRAINED] > 0:
                end += _ring_ticks(layers, sizes[s, WEIGHTS], own, 1)
            ready[own] = end


@kernel
def _by_device(device_of: Integers, num_devices: int) -> tuple[Integers, Integers]:
    """[D + 1] where the stage replicas of a device begin, and the stage replicas in that order."""
    device_start = np.zeros(num_devices + 1, np.int64)
    for n in range(device_of.shape[0]):
        device_start[device_of[n] + 1] += 1
    device_start = np.cumsum(device_start)
    fill = device_start[:-1].copy()
    device_replicas = np.zeros(device_of.shape[0], np.int64)
    for n in range(device_of.shape[0]):
        device_replicas[fill[device_of[n]]] = n
        fill[device_of[n]] += 1
    return device_start, device_replicas


@kernel
def assemble(layers: Layers, stage_of: Integers, start: Integers, devices: Integers, modes: Integers) -> Net:
    """The Net of a partition (`stage_of` [L]) and `modes` [S] of its stages, on devices[start[s]:start[s + 1]] each."""
    times, sizes = stage_sums(layers, stage_of, start, devices, modes)
    pairs = stage_traffic(layers, stage_of, start.shape[0] - 1)
    left = placed(layers.devices, static_units(layers, pairs, sizes, start, devices))
    replicas = make_replicas(layers, start, devices, times, sizes, left, 0)
    _add_hosts(layers, stage_of, start, devices, modes, replicas.host)
    return connect(layers, replicas, _make_transfers(layers, pairs, start, devices))


@kernel
def connect(layers: Layers, replicas: NetReplicas, transfers: Integers) -> Net:
    """Sort stage replicas by device, transfers by sender and direction, and mark those that share a link."""
    transfer_start = np.zeros(2 * replicas.stage.shape[0] + 1, np.int64)
    users = np.zeros(layers.options[LINKS], np.int64)
    for f in range(transfers.shape[0]):
        transfer_start[2 * transfers[f, SENDER] + transfers[f, DIRECTION] + 1] += 1
        if transfers[f, ROUTE] >= 0:
            for k in range(layers.route_start[transfers[f, ROUTE]], layers.route_start[transfers[f, ROUTE] + 1]):
                users[layers.route_links[k]] += 1
    transfer_start, holds = np.cumsum(transfer_start), layers.options[HOLDS] > 0
    fill = transfer_start[:-1].copy()
    table = np.zeros((SHARED + 1, transfers.shape[0]), np.int64)
    for f in range(transfers.shape[0]):
        at = fill[2 * transfers[f, SENDER] + transfers[f, DIRECTION]]
        fill[2 * transfers[f, SENDER] + transfers[f, DIRECTION]] += 1
        table[:SHARED, at] = transfers[f]
        if transfers[f, ROUTE] >= 0:
            for k in range(layers.route_start[transfers[f, ROUTE]], layers.route_start[transfers[f, ROUTE] + 1]):
                if users[layers.route_links[k]] > 1 or holds:
                    table[SHARED, at] = 1
    return make_net(replicas, transfer_start, table, layers.route_start, layers.route_links)


@kernel
def _count_waits(table: Integers, num_replicas: int) -> Integers:
    """[2, stage replicas] transfers that every one waits for before F, and before its backward pass."""
    waits = np.zeros((GRADIENTS + 1, num_replicas), np.int64)
    for f in range(table.shape[1]):
        waits[table[DIRECTION, f], table[RECEIVER, f]] += 1
    return waits


@kernel
def make_net(
    replicas: NetReplicas, transfer_start: Integers, table: Integers, route_start: Integers, route_links: Integers
) -> Net:
    """The Net of stage replicas and a table of sorted transfers [6, P]: whatever is played is put together here."""
    waits = _count_waits(table, replicas.stage.shape[0])
    device_start, device_replicas = _by_device(replicas.device, replicas.devices.shape[0])
    return Net(
        replicas.stage, replicas.device, replicas.duration, replicas.host, replicas.size[HAS_WEIGHT],
        replicas.size[HELD], replicas.size[STASH],
        replicas.size[WHOLE_BACKWARD], replicas.size[WEIGHT_STASH], replicas.size[WORKSPACE],
        replicas.size[WEIGHT_WORKSPACE],
        device_start, device_replicas,
        replicas.devices, transfer_start, table[DIRECTION], table[RECEIVER], table[TICKS], table[ROUTE], table[SHARED],
        waits[ACTIVATIONS], waits[GRADIENTS], route_start, route_links, replicas.synchronisation, replicas.scalars,
    )  # fmt: skip


@kernel
def _next_in_order(
    count: Integers, missing: ShortIntegers, device_orders: ShortIntegers, position: Integers, d: int
) -> int:
    """The next action of the device's order if it can start now, else -1."""
    code = device_orders[d, position[d]]
    n, kind = code >> 2, code & 3
    if kind == FORWARD:
        return code if missing[n, ACTIVATIONS, count[n, FORWARD]] == 0 else -1
    if kind == WEIGHT_GRAD:
        return code if count[n, WEIGHT_GRAD] < count[n, INPUT_GRAD] else -1
    m = count[n, INPUT_GRAD]
    return code if m < count[n, FORWARD] and missing[n, GRADIENTS, m] == 0 else -1


@kernel
def _forward_fits(replicas: Integers, cap: Integers, count: Integers, room: int, k: int, last: int, total: int) -> bool:
    """Whether `room` units do for one more F of replica k of a device, and for one F of each deeper stage replica that
    holds none.

    `replicas` [stage replicas by device, 8] is a `_replica_table`; the stage replicas of the device end before `last`.
    """
    n = replicas[k, REPLICA_NUMBER]
    if count[n, FORWARD] - count[n, INPUT_GRAD] >= cap[n]:
        return False
    need = replicas[k, REPLICA_HELD]
    for x in range(k + 1, last):
        other = replicas[x, REPLICA_NUMBER]
        if count[other, FORWARD] == count[other, INPUT_GRAD] and count[other, FORWARD] < total:
            need += replicas[x, REPLICA_HELD]
    return need + replicas[k, REPLICA_WORKSPACE] <= room


@kernel
def choose(
    replicas: Integers,
    device_start: Integers,
    free: Integers,
    policy: Policy,
    d: int,
    count: Integers,
    missing: ShortIntegers,
) -> int:
    """The action (replica * 4 + kind) that the policy starts on the idle device d, or -1 to wait.

    `replicas[device_start[d]:device_start[d + 1]]` are those of the device, by stage (see `_forward_fits`); `free` [D]
    units that are not held.
    """
    preferred = prefer(policy.preference, replicas, device_start, free, d, count, missing)
    if preferred != NO_RULE:
        return preferred
    first, last, room = device_start[d], device_start[d + 1], free[d]
    cap, lag, mode = policy.cap, policy.lag[d], policy.mode[d]
    total = missing.shape[2]
    forward, backward, weight = -1, -1, -1
    forward_rank, backward_rank, pending = FAR, FAR, -1
    for k in range(first, last):
        n = replicas[k, REPLICA_NUMBER]
        f, i, w = count[n, FORWARD], count[n, INPUT_GRAD], count[n, WEIGHT_GRAD]
        deep = -replicas[k, REPLICA_STAGE]
        fused = replicas[k, REPLICA_HAS_WEIGHT] and mode & FUSE
        during = replicas[k, REPLICA_WHOLE_BACKWARD] if fused else replicas[k, REPLICA_STASH]
        if (
            replicas[k, REPLICA_HAS_WEIGHT]
            and i - w > max(pending, 0)
            and replicas[k, REPLICA_WEIGHT_WORKSPACE] <= room
        ):
            weight, pending = n * 4 + WEIGHT_GRAD, i - w
        if (
            i < f
            and missing[n, GRADIENTS, i] == 0
            and during - replicas[k, REPLICA_HELD] + replicas[k, REPLICA_WORKSPACE] <= room
        ):
            rank = deep if mode & DEPTH_FIRST else i * 4096 + deep
            if rank < backward_rank:
                backward, backward_rank = n * 4 + (BACKWARD if fused else INPUT_GRAD), rank
        if f < total and missing[n, ACTIVATIONS, f] == 0:
            rank = deep if mode & DEPTH_FIRST else f * 4096 + deep
            if rank < forward_rank and _forward_fits(replicas, cap, count, room, k, last, total):
                forward, forward_rank = n * 4, rank
    if weight >= 0 and pending >= lag and (lag == 0 or backward < 0):
        return weight
    if mode & FORWARD_FIRST and forward >= 0:
        return forward
    if backward >= 0:
        return backward
    return forward if forward >= 0 else weight


@kernel
def _arrive(
    preference: Preference | None, net: Net, n: int, direction: int, m: int, missing: ShortIntegers, now: int
) -> int:
    """Count what has arrived at a stage replica; gives its device."""
    missing[n, direction, m if m >= 0 else missing.shape[2] - 1] -= 1
    note_arrival(preference, n, direction, m, now)
    return net.replica_device[n]


@kernel
def _replica_table(net: Net, follow: bool) -> Integers:
    """[stage replicas by device, 8] index, stage, has W, held, workspaces, stashes: what `choose` reads, side by
    side; empty where orders are followed and nothing is chosen.
    """
    table = np.empty((0 if follow else net.device_replicas.shape[0], REPLICA_WHOLE_BACKWARD + 1), np.int64)
    for k in range(table.shape[0]):
        n = net.device_replicas[k]
        table[k, REPLICA_NUMBER], table[k, REPLICA_STAGE] = n, net.replica_stage[n]
        table[k, REPLICA_HAS_WEIGHT] = net.has_weight[n]
        table[k, REPLICA_HELD], table[k, REPLICA_WORKSPACE] = net.held[n], net.workspace[n]
        table[k, REPLICA_WEIGHT_WORKSPACE] = net.weight_workspace[n]
        table[k, REPLICA_STASH], table[k, REPLICA_WHOLE_BACKWARD] = net.stash[n], net.whole_backward[n]
    return table


@kernel
def send(
    net: Net,
    outlet: int,
    m: int,
    heap: Integers,
    link_free: Integers,
    missing: ShortIntegers,
    sent: Integers | None,
) -> None:
    """Let every transfer of an outlet (2 * replica + direction) go off for microbatch m; -1 has the last column."""
    for f in range(net.transfer_start[outlet], net.transfer_start[outlet + 1]):
        if net.transfer_route[f] < 0:
            missing[net.transfer_target[f], net.transfer_direction[f], m if m >= 0 else missing.shape[2] - 1] -= 1
        elif net.transfer_shared[f]:
            key = event_key(1, net.replica_stage[outlet >> 1], m, net.transfer_direction[f], f, SEND)
            heap_push(heap, heap[CLOCK, NOW], key)
        else:
            _depart(net, f, m, heap[CLOCK, NOW], heap, link_free, sent)


@kernel
def travel(net: Net, f: int, now: int, link_free: Integers) -> int:
    """When what leaves by transfer f at `now` arrives; its links are taken until then."""
    route, end = net.transfer_route[f], now
    if route < 0:
        return end
    for k in range(net.route_start[route], net.route_start[route + 1]):
        end = max(end, link_free[net.route_links[k]])
    end += net.transfer_duration[f]
    for k in range(net.route_start[route], net.route_start[route + 1]):
        link_free[net.route_links[k]] = end
    return end


@kernel
def _depart(net: Net, f: int, m: int, earliest: int, heap: Integers, link_free: Integers, sent: Integers | None) -> int:
    """Put transfer f on its links once they are free; when it arrives."""
    end = travel(net, f, earliest, link_free)
    if sent is not None:
        sent[f, m if m >= 0 else sent.shape[1] - 1] = end - net.transfer_duration[f]
    heap_push(
        heap, end, event_key(0, net.replica_stage[net.transfer_target[f]], m, net.transfer_direction[f], f, ARRIVAL)
    )
    return end


@kernel
def make_shares(net: Net) -> Integers:
    """[N, 3] ticks of F, of the least backward work before the gradient leaves, and of the least after it."""
    shares = np.zeros((net.replica_stage.shape[0], 3), np.int64)
    for n in range(shares.shape[0]):
        shares[n, FORWARD_PART], shares[n, GRADIENT_PART] = net.duration[n, FORWARD], net.duration[n, INPUT_GRAD]
        if net.has_weight[n]:
            whole = first = net.duration[n, BACKWARD]
            if net.scalars[SPLIT]:
                whole = min(net.duration[n, INPUT_GRAD] + net.duration[n, WEIGHT_GRAD], whole)
                first = min(net.duration[n, INPUT_GRAD], first)
            shares[n, GRADIENT_PART], shares[n, REST_PART] = first, max(whole - first, 0)
    return shares


@kernel
def make_drains(net: Net, shares: Integers) -> Integers:
    """[N] what follows every I of a stage replica: the chain of I upstream, with W and all-reduce at every step."""
    drain = np.zeros(net.replica_stage.shape[0], np.int64)
    for n in range(drain.shape[0]):
        drain[n] = shares[n, REST_PART] + net.synchronisation[net.replica_stage[n]]
        for f in range(net.transfer_start[2 * n + 1], net.transfer_start[2 * n + 2]):
            target = net.transfer_target[f]
            drain[n] = max(drain[n], net.transfer_duration[f] + shares[target, GRADIENT_PART] + drain[target])
    return drain


@kernel
def _work_beyond(net: Net, shares: Integers, limit: int) -> Integers:
    """[D] ticks beyond `limit` that a device needs from its start, at 0, to the end of its least all-reduce."""
    left = np.empty(net.devices.shape[0], np.int64)
    for d in range(left.shape[0]):
        left[d], least_end = -limit, FAR
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_replicas[k]
            work = shares[n, FORWARD_PART] + shares[n, GRADIENT_PART] + shares[n, REST_PART]
            left[d] += net.scalars[MICROBATCHES] * work
            least_end = min(least_end, net.synchronisation[net.replica_stage[n]])
        left[d] += least_end if least_end < FAR else 0
    return left


@kernel
def memory_steps(net: Net, n: int, kind: int) -> tuple[int, int]:
    """Units that an action of replica n needs while it runs, and units it adds for good (gives back, negative)."""
    if kind == FORWARD:
        return net.held[n] + net.workspace[n], net.held[n]
    if kind == WEIGHT_GRAD:
        return net.weight_workspace[n], -net.weight_stash[n]
    if kind == INPUT_GRAD:
        return net.stash[n] - net.held[n] + net.workspace[n], net.weight_stash[n] - net.held[n]
    return net.whole_backward[n] - net.held[n] + net.workspace[n], -net.held[n]


@kernel
def count_action(net: Net, count: Integers, n: int, kind: int, sign: int) -> int:
    """Count an action (or take it back, sign -1); returns what it adds to the units held after it."""
    if kind == BACKWARD:
        count[n, INPUT_GRAD] += sign
        count[n, WEIGHT_GRAD] += sign
    else:
        count[n, kind] += sign
    _, after = memory_steps(net, n, kind)
    return sign * after


@kernel
def make_missing(net: Net) -> ShortIntegers:
    """[N, 2, M] inputs and gradients that have yet to arrive."""
    missing = np.empty((net.replica_stage.shape[0], 2, net.scalars[MICROBATCHES]), np.int32)
    for n in range(missing.shape[0]):
        missing[n, ACTIVATIONS, :] = net.num_inputs[n]
        missing[n, GRADIENTS, :] = net.num_gradients[n]
    return missing


@kernel
def _make_outlook(net: Net, limit: int) -> tuple[Integers, Integers]:
    """What tells early that the end is at `limit` or later.

    [N, 5] ticks of F, of I, of what follows it (see `make_shares`), of W, and those by which the last I of the stage
    replica has to have ended before `limit`, below 0; [D] how long a device's work continues beyond `limit` if it
    begins at once.
    """
    shares = make_shares(net)
    drains, outlook = make_drains(net, shares), np.empty((shares.shape[0], DRAIN_PART + 1), np.int64)
    for n in range(shares.shape[0]):
        for part in range(REST_PART + 1):
            outlook[n, part] = shares[n, part]
        outlook[n, WEIGHT_PART] = net.duration[n, WEIGHT_GRAD] * net.has_weight[n]
        outlook[n, DRAIN_PART] = drains[n] - limit
    return outlook, _work_beyond(net, shares, limit)


@kernel
def is_late(outlook: Integers, beyond: Integers, n: int, d: int, kind: int, now: int, returns: int) -> bool:
    """Whether the end is certain to be too late if the action starts now, which is then no longer ahead of device d.

    `outlook`, `beyond` are those of `_make_outlook`; `returns` counts the microbatches of the stage replica whose I has
    not started yet, this one included.
    """
    late = now + beyond[d] >= 0
    if kind == FORWARD:
        beyond[d] -= outlook[n, FORWARD_PART]
    elif kind == WEIGHT_GRAD:
        beyond[d] -= outlook[n, WEIGHT_PART]
    else:
        late = late or now + returns * outlook[n, GRADIENT_PART] + outlook[n, DRAIN_PART] >= 0
        later = outlook[n, WEIGHT_PART] if kind == INPUT_GRAD else 0
        beyond[d] -= outlook[n, GRADIENT_PART] + outlook[n, REST_PART] - later
    return late


@kernel
def is_plain(net: Net, recording: Recording) -> bool:
    """Whether every stage replica has one device, which computes while it sends and waits for no host and no peer."""
    is_alone = recording.members.shape[0] == net.replica_stage.shape[0] and recording.peers.shape[0] == 0
    return is_alone and net.scalars[HOLDS] == 0 and recording.hosts.shape[0] == 0


@kernel
def _has_arrived(missing: ShortIntegers, code: int, m: int) -> bool:
    """Whether everything is there that an action (replica * 4 + kind) of a recording waits for."""
    n = code >> 2
    if missing[n, ACTIVATIONS, m] > 0 or missing[n, ACTIVATIONS, missing.shape[2] - 1] > 0:
        return False
    return code & 3 == FORWARD or missing[n, GRADIENTS, m] == 0


@kernel
def _is_gated(recording: Recording, position: Integers, busy: Flags, d: int) -> bool:
    """Whether a peer of device d has yet to end actions that the next one waits for."""
    for k in range(recording.peer_start[d], recording.peer_start[d + 1]):
        peer = recording.peers[k]
        if position[peer] - int64(busy[peer]) < recording.gate[d, position[d]]:
            return True
    return False


@kernel
def _next_plain(
    missing: ShortIntegers, device_orders: ShortIntegers, microbatch: ShortIntegers, position: Integers, d: int
) -> tuple[int, int]:
    """The next action of the device's order, -1 if it cannot start now, and its microbatch; devices work alone."""
    code, m = device_orders[d, position[d]], microbatch[d, position[d]]
    return (code if _has_arrived(missing, code, m) else -1), m


@kernel
def _next_recorded(recording: Recording, orders: Orders, missing: ShortIntegers, d: int) -> int:
    """The next action of the device's order if all who take part can start it now, else -1."""
    device_orders, position = orders.device_orders, orders.position
    code, m = device_orders[d, position[d]], recording.microbatch[d, position[d]]
    n = code >> 2
    if not _has_arrived(missing, code, m) or _is_gated(recording, position, orders.busy, d):
        return -1
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        other = recording.members[k]
        x = position[other]
        if orders.busy[other] or x >= orders.lengths[other]:
            return -1
        if device_orders[other, x] != code or recording.microbatch[other, x] != m:
            return -1
    return code


@kernel
def _is_held(recording: Recording, until: Integers, n: int, now: int) -> bool:
    """Whether a device of replica n still sends or receives."""
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        if until[recording.members[k]] > now:
            return True
    return False


@kernel
def _recorded_ticks(recording: Recording, orders: Orders, n: int, d: int, now: int) -> int:
    """How long the next action of device d takes, by the slowest host of those that run it together."""
    took = recording.duration[d, orders.position[d]]
    if recording.hosts.shape[0] == 0:
        return took
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        other = recording.members[k]
        x = orders.position[other]
        took = max(took, card_ticks(recording.hosts, other, x, now, took, recording.host[other, x]))
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        other = recording.members[k]
        x = orders.position[other]
        recording.duration[other, x] = took
        note_end(recording.hosts, other, x, now + took)
    return took


@kernel
def _start_recorded(
    net: Net, recording: Recording, orders: Orders, transit: _Transit, waits: _Waits, d: int, is_resumed: bool
) -> None:
    """Start the next action of device d, and of all who take part, if it can start.

    Where transfers hold their devices, actions that take time start after the transfers that are ready at this instant.
    """
    code = _next_recorded(recording, orders, transit.missing, d)
    if code < 0:
        return
    n, kind, m, now = code >> 2, code & 3, recording.microbatch[d, orders.position[d]], transit.heap[CLOCK, NOW]
    end = now + _recorded_ticks(recording, orders, n, d, now)
    if end > now and waits.until.shape[0] > 0:
        if not is_resumed:
            heap_push(transit.heap, now, event_key(2, 0, 0, 0, d, RESUME))
        if not is_resumed or _is_held(recording, waits.until, n, now):
            return
        for k in range(recording.member_start[n], recording.member_start[n + 1]):
            waits.until[recording.members[k]] = end
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        other = recording.members[k]
        recording.start[other, orders.position[other]] = now
        orders.position[other] += 1
        orders.busy[other] = True
    heap_push(transit.heap, end, event_key(0, net.replica_stage[n], m, 0, n, kind))


@kernel
def _make_waits(net: Net) -> _Waits:
    """At the beginning no device is held, and hosts are free when their devices are."""
    holds = net.scalars[HOLDS] > 0
    sender = np.empty(net.transfer_target.shape[0] if holds else 0, np.int64)
    for outlet in range(net.transfer_start.shape[0] - 1 if holds else 0):
        for f in range(net.transfer_start[outlet], net.transfer_start[outlet + 1]):
            sender[f] = -1 if net.transfer_target[f] == outlet >> 1 else outlet >> 1
    until = np.zeros(net.devices.shape[0] if holds else 0, np.int64)
    return _Waits(until, sender, make_hosts(net.devices, net.host.shape[0] > 0))


@kernel
def _takes_device(net: Net, heap: Integers, waits: _Waits, d: int, code: int, is_resumed: bool) -> bool:
    """Whether an action (replica * 4 + kind) starts on device d now and holds it; else the device resumes later.

    Transfers that are ready at this instant come first. What takes no time holds nothing.
    """
    if waits.until.shape[0] == 0:
        return True
    now, took = heap[CLOCK, NOW], net.duration[code >> 2, code & 3]
    if took == 0:
        return True
    if not is_resumed:
        heap_push(heap, now, event_key(2, 0, 0, 0, d, RESUME))
    if not is_resumed or waits.until[d] > now:
        return False
    waits.until[d] = now + took
    return True


@kernel
def _depart_held(net: Net, transit: _Transit, waits: _Waits, f: int, m: int, sent: Integers | None) -> None:
    """Put transfer f on its links once they, and both devices where it holds them, are free."""
    heap, link_free, _ = transit
    if waits.sender.shape[0] == 0 or waits.sender[f] < 0:
        _depart(net, f, m, heap[CLOCK, NOW], heap, link_free, sent)
        return
    a, b = net.replica_device[waits.sender[f]], net.replica_device[net.transfer_target[f]]
    end = _depart(net, f, m, max(heap[CLOCK, NOW], waits.until[a], waits.until[b]), heap, link_free, sent)
    for d in (a, b):
        waits.until[d] = end
        heap_push(heap, end, event_key(2, 0, 0, 0, d, RESUME))


@kernel
def _open_recorded(net: Net, recording: Recording, transit: _Transit) -> None:
    """Release what leaves at time 0."""
    heap, link_free, missing = transit
    for n in recording.opening:
        send(net, 2 * n + ACTIVATIONS, -1, heap, link_free, missing, recording.sent)


@kernel
def _close_stage(net: Net, recording: Recording, transit: _Transit, n: int) -> None:
    """Send what the stage of replica n sends when all its actions have ended, once: a transfer of microbatch M."""
    heap, link_free, missing = transit
    replica = recording.closing[net.replica_stage[n], REPLICA]
    if replica >= 0:
        send(net, 2 * replica + GRADIENTS, net.scalars[MICROBATCHES], heap, link_free, missing, recording.sent)


@kernel
def mark(d: int, dirty: Integers, is_dirty: Flags, num_dirty: int) -> int:
    """Let device d continue once all events of this instant have been seen; the new number of those that may."""
    if not is_dirty[d]:
        is_dirty[d] = True
        dirty[num_dirty] = d
        num_dirty += 1
    return num_dirty


@kernel
def _mark_members(recording: Recording, n: int, busy: Flags, dirty: Integers, is_dirty: Flags, num_dirty: int) -> int:
    """Let all devices of replica n and their peers continue; the new number of those that may."""
    for k in range(recording.member_start[n], recording.member_start[n + 1]):
        d = recording.members[k]
        busy[d] = False
        num_dirty = mark(d, dirty, is_dirty, num_dirty)
        for peer in recording.peers[recording.peer_start[d] : recording.peer_start[d + 1]]:
            num_dirty = mark(peer, dirty, is_dirty, num_dirty)
    return num_dirty


@kernel
def _make_ends(net: Net) -> tuple[Integers, Integers, Integers, Integers, Integers, Flags]:
    """At the beginning: when links are free and stages have ended, when devices began (-1) and were last busy; then the
    devices that may start an action, and which these are: all.
    """
    num_links, num_devices = net.scalars[LINKS], net.devices.shape[0]
    first = num_links + net.synchronisation.shape[0]
    ends = np.zeros(first + 3 * num_devices, np.int64)  # one array: making five takes a twentieth of a short play
    links, stages, began = ends[:num_links], ends[num_links:first], ends[first : first + num_devices]
    last, dirty = ends[first + num_devices : first + 2 * num_devices], ends[first + 2 * num_devices :]
    for d in range(num_devices):
        began[d], dirty[d] = -1, d
    return links, stages, began, last, dirty, np.ones(num_devices, np.bool_)


@kernel
def _make_events(net: Net, recording: Recording | None) -> Integers:
    """Room for all events that may lie ahead at once: two more per transfer and device where transfers hold devices."""
    transfers, devices = net.transfer_target.shape[0] * net.scalars[MICROBATCHES], net.devices.shape[0]
    if recording is not None or net.scalars[HOLDS] > 0:
        transfers, devices = 3 * transfers, 2 * devices
    return make_heap(transfers + devices)


@kernel
def _fuse_where_whole(policy: Policy, can_split: int) -> Policy:
    """The policy, which fuses I and W where they cannot be split."""
    return policy if can_split else Policy(policy.cap, policy.lag, policy.mode | FUSE, policy.preference)


@kernel
def lost_ticks(net: Net, stage_end: Integers) -> int:
    """Most that a device's actions lose to reductions: of all its stages but the longest of those that end last."""
    most = int64(0)
    for d in range(net.devices.shape[0] if net.scalars[OCCUPANCY] > 0 else 0):
        lost, latest, spared = int64(0), int64(-1), int64(0)
        for n in net.device_replicas[net.device_start[d] : net.device_start[d + 1]]:
            s = net.replica_stage[n]
            taken = ceil_div(net.synchronisation[s] * net.scalars[OCCUPANCY], 1000)
            if stage_end[s] > latest or (stage_end[s] == latest and taken > spared):
                latest, spared = stage_end[s], taken
            lost += taken
        most = max(most, lost - spared)
    return most


@kernel
def _lengths_of(
    net: Net, count: Integers, stage_end: Integers, first: Integers, last: Integers
) -> tuple[int, int, int]:
    """What a play returns, by when stages and devices begin and end; FAR if actions are left over."""
    total, end, span, last_ends = net.scalars[MICROBATCHES], int64(0), int64(0), int64(0)
    for n in range(count.shape[0]):
        if min(count[n, FORWARD], count[n, INPUT_GRAD]) < total or count[n, WEIGHT_GRAD] < total * net.has_weight[n]:
            return FAR, FAR, FAR
    for s in range(stage_end.shape[0]):
        end = max(end, stage_end[s] + net.synchronisation[s])
    for d in range(last.shape[0]):
        span, last_ends = max(span, last[d] - max(first[d], 0)), last_ends + last[d]
    return end + lost_ticks(net, stage_end) + net.scalars[TAIL], span, last_ends


@kernel
def _run(
    net: Net, policy: Policy, orders: Orders, follow: bool, threshold: int, recording: Recording | None,
    waits: _Waits | None,
) -> tuple[int, int, int]:  # fmt: skip
    """The recurrence behind `play`."""
    device_orders, lengths, position, busy = orders
    num_dirty, total = net.devices.shape[0], net.scalars[MICROBATCHES]
    missing = make_missing(net) if recording is None else recording.missing
    count = np.zeros((net.replica_stage.shape[0], WEIGHT_GRAD + 1), np.int64)
    link_free, stage_end, first, last, dirty, is_dirty = _make_ends(net)
    heap, replicas = _make_events(net, recording), _replica_table(net, follow)
    outlook, beyond = _make_outlook(net, threshold - net.scalars[TAIL])
    free, now, policy = net.devices[:, MEMORY].copy(), int64(0), _fuse_where_whole(policy, net.scalars[SPLIT])
    lengths *= follow
    if waits is not None:
        transit, resumed = _Transit(heap, link_free, missing), int64(-1)
    if recording is not None:
        plain, microbatch, start = is_plain(net, recording), recording.microbatch, recording.start
        left, sent = recording.closing, recording.sent
        _open_recorded(net, recording, transit)
    while num_dirty > 0 or heap[CLOCK, AHEAD] > 0:
        for x in range(num_dirty):
            d, is_dirty[dirty[x]] = dirty[x], False
            if busy[d] or (follow and position[d] >= lengths[d]):
                continue
            if recording is not None:
                if not plain and waits is not None:
                    _start_recorded(net, recording, orders, transit, waits, d, d == resumed)
                    continue
                code, m = _next_plain(missing, device_orders, microbatch, position, d)
            elif follow:
                code = _next_in_order(count, missing, device_orders, position, d)
            else:
                code = choose(replicas, net.device_start, free, policy, d, count, missing)
            if code < 0 or (waits is not None and not _takes_device(net, heap, waits, d, code, d == resumed)):
                continue
            n, kind = code >> 2, code & 3
            if recording is not None:
                start[d, position[d]], took = now, recording.duration[d, position[d]]
            else:
                m = count[n, WEIGHT_GRAD if kind == WEIGHT_GRAD else min(kind, INPUT_GRAD)]
                if is_late(outlook, beyond, n, d, kind, now, total - m):
                    return threshold, threshold, threshold
                free[d] -= count_action(net, count, n, kind, 1)
                took, device_orders[d, position[d]], lengths[d] = net.duration[n, kind], code, lengths[d] + (not follow)
                if waits is not None and waits.hosts.shape[0] > 0:
                    took = card_ticks(waits.hosts, d, position[d], now, took, net.host[n, kind])
            position[d], busy[d], first[d] = position[d] + 1, True, now if first[d] < 0 else first[d]
            heap_push(heap, now + took, event_key(0, net.replica_stage[n], m, 0, n, kind))
        num_dirty, now, heap[CLOCK, NOW] = 0, heap[NEXT, TIME], heap[NEXT, TIME]
        if waits is not None:
            resumed = int64(-1)
        while heap[CLOCK, AHEAD] > 0 and heap[NEXT, TIME] == now and (num_dirty == 0 or heap[NEXT, KEY] < FIRST_SEND):
            code, index, direction, m = event_of(heap_pop(heap))
            if code == SEND:
                if waits is None:
                    _depart(net, index, m, now, heap, link_free, None)
                else:
                    _depart_held(net, transit, waits, index, m, None if recording is None else sent)
                continue
            if code == ARRIVAL:
                d = _arrive(policy.preference, net, net.transfer_target[index], direction, m, missing, now)
            elif waits is not None and code == RESUME:
                d, resumed = index, index
            else:
                n, d = index, net.replica_device[index]
                busy[d], last[d], stage_end[net.replica_stage[n]] = False, now, now
                if recording is not None:
                    if code != WEIGHT_GRAD:
                        send(net, 2 * n + min(code, GRADIENTS), m, heap, link_free, missing, sent)
                    left[net.replica_stage[n], LEFT] -= 1
                    if left[net.replica_stage[n], LEFT] == 0:
                        _close_stage(net, recording, transit, n)
                    if not plain:
                        num_dirty = _mark_members(recording, n, busy, dirty, is_dirty, num_dirty)
                elif code != WEIGHT_GRAD:
                    send(net, 2 * n + min(code, GRADIENTS), m, heap, link_free, missing, None)
            num_dirty = mark(d, dirty, is_dirty, num_dirty)
    return _lengths_of(net, count, stage_end, first, last)


@kernel
def play(
    net: Net, policy: Policy, device_orders: ShortIntegers, lengths: Integers, follow: bool, threshold: int,
    recording: Recording | None,
) -> tuple[int, int, int]:  # fmt: skip
    """Run the net to its end: by the orders if `follow`, else by the policy, which then writes them.

    `device_orders` [D, longest] holds replica * 4 + kind, `lengths` [D] how many. Returns (makespan, span, sum of the
    devices' last ends): FAR if it deadlocks, a time from `threshold` on once the makespan is sure to be no less.
    """
    num_devices = net.devices.shape[0]
    orders = Orders(device_orders, lengths, np.zeros(num_devices, np.int64), np.zeros(num_devices, np.bool_))
    if recording is None and net.scalars[HOLDS] == 0 and net.host.shape[0] == 0:
        return _run(net, policy, orders, follow, threshold, None, None)
    return _run(net, policy, orders, follow, threshold, recording, _make_waits(net))


@kernel
def peak_excess(net: Net, device_orders: ShortIntegers, lengths: Integers) -> int:
    """Largest number of units by which a device exceeds its budget when it runs its device order; 0 if none does."""
    worst = int64(0)
    for d in range(net.devices.shape[0]):
        held = int64(0)
        for x in range(lengths[d]):
            during, after = memory_steps(net, device_orders[d, x] >> 2, device_orders[d, x] & 3)
            worst = max(worst, held + during - net.devices[d, MEMORY])
            held += after
        worst = max(worst, -net.devices[d, MEMORY] if net.device_start[d + 1] > net.device_start[d] else 0)
    return worst
