"""Complete enumeration of orders for tiny nets: every legal order of every device, every combination played."""

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, ShortIntegers
from solver_models.local_search.search import Candidate, Searcher, decode
from solver_models.simulation.evaluator import FAR, MICROBATCHES, SPLIT, Net, Policy, count_action, memory_steps, play


@kernel
def _may_start(net: Net, count: Integers, held: int, d: int, n: int, kind: int) -> bool:
    """Whether replica n may take an action of this kind next on device d, by its own order and the memory."""
    f, i, w = count[n, FORWARD], count[n, INPUT_GRAD], count[n, WEIGHT_GRAD]
    during, _ = memory_steps(net, n, kind)
    if held + during > net.devices[d, MEMORY]:
        return False
    if kind == 0:
        return f < net.scalars[MICROBATCHES]
    if kind == 2:
        return w < i and net.has_weight[n] == 1
    if i >= f:
        return False
    split, weight = net.scalars[SPLIT] == 1, net.has_weight[n] == 1
    if kind == 1:
        return split or not weight
    return weight and (
        not split or net.duration[n, BACKWARD] < net.duration[n, INPUT_GRAD] + net.duration[n, WEIGHT_GRAD]
    )


@kernel
def is_complete(net: Net, count: Integers, d: int) -> bool:
    """Whether every stage replica of device d has done all its work."""
    total = net.scalars[MICROBATCHES]
    for k in range(net.device_start[d], net.device_start[d + 1]):
        n = net.device_replicas[k]
        if count[n, INPUT_GRAD] < total or (net.has_weight[n] == 1 and count[n, WEIGHT_GRAD] < total):
            return False
    return True


@kernel
def legal_orders(net: Net, d: int, limit: int) -> tuple[ShortIntegers, Integers]:
    """[device orders, longest], [device orders]: every legal device order of device d and its length; a first length of
    -1 if above `limit`.
    """
    first, num_replicas = net.device_start[d], net.device_start[d + 1] - net.device_start[d]
    longest = 3 * num_replicas * net.scalars[MICROBATCHES]
    device_orders, lengths = np.zeros((limit, max(longest, 1)), np.int32), np.zeros(limit, np.int64)
    count = np.zeros((net.replica_stage.shape[0], 3), np.int64)
    choice = np.zeros(longest + 1, np.int64)
    device_order = np.zeros(max(longest, 1), np.int32)
    found, depth, held = 0, 0, int64(0)
    while depth >= 0:
        if choice[depth] == 0 and is_complete(net, count, d):
            if found == limit:
                lengths[0] = -1
                return device_orders, lengths
            device_orders[found] = device_order
            lengths[found] = depth
            found += 1
            choice[depth] = 4 * num_replicas
        advanced = False
        while choice[depth] < 4 * num_replicas and not advanced:
            n, kind = net.device_replicas[first + choice[depth] // 4], choice[depth] % 4
            choice[depth] += 1
            if _may_start(net, count, held, d, n, kind):
                held += count_action(net, count, n, kind, 1)
                device_order[depth] = n * 4 + kind
                depth += 1
                choice[depth] = 0
                advanced = True
        if not advanced:
            depth -= 1
            if depth >= 0:
                held += count_action(net, count, device_order[depth] >> 2, device_order[depth] & 3, -1)
    return device_orders[:found], lengths[:found]


@kernel
def best_order(
    net: Net, tables: ShortIntegers, table_lengths: Integers, table_sizes: Integers, threshold: int, by_span: bool
) -> tuple[int, Integers]:
    """Play every combination of device orders; the best objective below `threshold` (else `threshold`) and its
    combination.

    `tables` [D, most device orders, longest], `table_lengths` [D, most device orders] and `table_sizes` [D] list the
    orders per device.
    """
    num_devices = net.devices.shape[0]
    device_orders, lengths = tables[:, 0].copy(), table_lengths[:, 0].copy()
    pick, best_pick = np.zeros(num_devices, np.int64), np.full(num_devices, -1)
    policy = Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), None)
    best = threshold
    while True:
        makespan, span, _ = play(net, policy, device_orders, lengths, True, FAR, None)
        value = span if by_span else makespan
        if value < best and value < FAR:
            best = value
            best_pick[:] = pick
        d = 0
        while d < num_devices:
            pick[d] = (pick[d] + 1) % table_sizes[d]
            device_orders[d] = tables[d, pick[d]]
            lengths[d] = table_lengths[d, pick[d]]
            if pick[d] > 0:
                break
            d += 1
        if d == num_devices:
            return best, best_pick


def enumerate_orders(
    searcher: Searcher, candidate: Candidate, *, threshold: int, most_orders: int, most_plays: int
) -> tuple[bool, Candidate | None]:
    """Whether every order was played, and the best below `threshold`, if any."""
    net = searcher.net_of(candidate)
    found, plays = [], 1
    for device in range(len(searcher.layers.devices)):
        codes, lengths = legal_orders(net, device, most_orders)
        if not len(codes):
            return True, None
        found.append((codes, lengths))
        plays *= len(codes)
        if lengths[0] < 0 or plays > most_plays:
            return False, None
    sizes = np.array([len(codes) for codes, _ in found])
    tables = np.zeros((len(found), sizes.max(), max(codes.shape[1] for codes, _ in found)), np.int32)
    table_lengths = np.zeros((len(found), sizes.max()), np.int64)
    for device, (codes, lengths) in enumerate(found):
        tables[device, : len(codes), : codes.shape[1]] = codes
        table_lengths[device, : len(codes)] = lengths
    value, pick = best_order(net, tables, table_lengths, sizes, threshold, searcher.by_span)
    if pick[0] < 0:
        return True, None
    each = np.arange(len(found))
    orders = decode(net, tables[each, pick], lengths=table_lengths[each, pick], first=searcher.first_member)
    return True, candidate.with_orders(orders, objective=int(value))
