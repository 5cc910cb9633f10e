"""Local search on given device orders: longest paths from both ends, and moves along the critical path judged in
passing.

With the order of every device fixed, an iteration is a graph: each action waits for the one before it on its device and
for what it needs from others. `heads` plays it forwards, `tails` backwards; a move of one action within its device
order is then judged by the paths through the actions that it shifts alone (Balas and Vazacopoulos' estimate for job
shops), and only the best of many is played. Exact where every link is used by the transfers of one device only: then
the queue on it follows from the sender's order. `follows_orders` says so; other nets are left to `polish`, which plays
every step.

A block is a run of actions of one device on a longest path, without a wait between them. A move takes one of them
towards an end of the block, or beyond it:

    tick       0  1  2  3  4  5
    device 0   F0 F1 F2 .. .. I0
    device 1   .. F0 F1 F2 I0         F0 F1 F2 I0 is a block: device 0 waits for its last action

    device 0   F0 F1 F2 .. I0
    device 1   .. F0 F1 I0 F2         I0 has moved before F2; only these two are shifted, so that the move is judged by
                     [---]            head + duration + tail through I0, and through F2 after it
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY, free_from
from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, ShortIntegers
from solver_models.moves.annealing import Cooling
from solver_models.simulation.evaluator import (
    FAR,
    HOLDS,
    LINKS,
    MICROBATCHES,
    TAIL,
    Net,
    Policy,
    count_action,
    lost_ticks,
    make_missing,
    memory_steps,
    play,
    travel,
)


class HeadsAndTails(NamedTuple):
    """Device orders of a net and what is known about them; positions are [D, longest]."""

    device_orders: ShortIntegers
    """The device orders: replica * 4 + kind."""
    lengths: Integers
    """[D] their lengths."""
    start: Integers
    """Start of every action."""
    ready: Integers
    """When what it needs from other devices has arrived."""
    tail: Integers
    """Ticks from its end to the end of the iteration, at the least."""
    leave: Integers
    """The part of `tail` that does not pass over the next action of its own device."""
    span: Integers
    """Its duration."""
    before: Integers
    """Units held before it."""
    number: Integers
    """Its microbatch, or which W of its stage replica it is."""
    place: Integers
    """[N, 3, M] position of every F, I (or B) and W of a stage replica; -1 where there is none."""
    order: Integers
    """[actions, 2] device and position, in an order in which everything follows what it waits for."""
    offset: Integers
    """[N] ticks that follow the last action of a stage replica; for the span, less the start of its device."""


DEVICE, POSITION = 0, 1
"""Columns of `order`."""

BLOCK_DEVICE, BLOCK_FIRST, BLOCK_LAST = range(3)
"""Columns of blocks of the critical path."""


class TabuSearch(NamedTuple):
    """How long a tabu search continues, and how widely it looks."""

    steps: int
    """Moves at most."""
    samples: int
    """Moves that are judged before one is made."""
    patience: int
    """Steps without better device orders after which it goes back to the best."""
    lower_bound: int
    """It ends once the objective is this low."""
    seed: int
    """Of the random numbers."""


@kernel
def make_heads_and_tails(net: Net, device_orders: ShortIntegers, lengths: Integers) -> HeadsAndTails:
    """Room for the figures of these device orders."""
    num_replicas, num_devices, total = net.replica_stage.shape[0], net.devices.shape[0], net.scalars[MICROBATCHES]
    width = device_orders.shape[1]
    shape = (num_devices, width)
    return HeadsAndTails(
        device_orders, lengths,
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64),
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64),
        np.full((num_replicas, 3, total), -1, np.int64), np.zeros((num_devices * width, 2), np.int64),
        np.zeros(num_replicas, np.int64),
    )  # fmt: skip


@kernel
def follows_orders(net: Net) -> bool:
    """Whether transfers hold no devices, every link serves one sending device only, and every action takes time."""
    if net.scalars[HOLDS] > 0:
        return False
    user = np.full(net.scalars[LINKS], -1, np.int64)
    for n in range(net.replica_stage.shape[0]):
        if (
            net.duration[n, FORWARD] <= 0
            or net.duration[n, INPUT_GRAD] <= 0
            or (net.has_weight[n] and net.duration[n, WEIGHT_GRAD] <= 0)
        ):
            return False
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 2]):
            if net.transfer_route[f] < 0:
                continue
            for k in range(net.route_start[net.transfer_route[f]], net.route_start[net.transfer_route[f] + 1]):
                link = net.route_links[k]
                if user[link] >= 0 and user[link] != net.replica_device[n]:
                    return False
                user[link] = net.replica_device[n]
    return True


@kernel
def heads(net: Net, heads_tails: HeadsAndTails, by_span: bool) -> tuple[int, int]:
    """Play the orders: (objective, sum of last ends), FAR if they deadlock; fills `heads_tails` but the tails."""
    device_orders, lengths = heads_tails.device_orders, heads_tails.lengths
    place, order = heads_tails.place, heads_tails.order
    num_devices, missing = net.devices.shape[0], make_missing(net)
    arrival = np.zeros(missing.shape, np.int64)
    count, link_free = np.zeros((net.replica_stage.shape[0], 3), np.int64), np.zeros(net.scalars[LINKS], np.int64)
    position, clock, held = np.zeros(num_devices, np.int64), free_from(net.devices), np.zeros(num_devices, np.int64)
    stack, waits, top, done = np.arange(num_devices), np.ones(num_devices, np.bool_), num_devices, 0
    while top > 0:
        top -= 1
        d = int(stack[top])
        waits[d] = False
        x: int = position[d]
        while x < lengths[d]:
            n, kind = device_orders[d, x] >> 2, device_orders[d, x] & 3
            direction, arrived = min(kind, 1), int64(0)
            m = count[n, kind if kind < 3 else 1]
            if kind != 2:
                if missing[n, direction, m] > 0:
                    break
                arrived = arrival[n, direction, m]
            begin = max(clock[d], arrived)
            clock[d] = begin + net.duration[n, kind]
            heads_tails.start[d, x], heads_tails.ready[d, x], heads_tails.number[d, x] = begin, arrived, m
            heads_tails.span[d, x], heads_tails.before[d, x] = net.duration[n, kind], held[d]
            order[done, DEVICE], order[done, POSITION] = d, x
            done += 1
            x += 1
            held[d] += count_action(net, count, n, kind, 1)
            place[n, kind if kind < 3 else 1, m] = x - 1
            if kind == 2:
                continue
            for f in range(net.transfer_start[2 * n + direction], net.transfer_start[2 * n + direction + 1]):
                target = net.transfer_target[f]
                end = travel(net, f, clock[d], link_free)
                arrival[target, direction, m] = max(arrival[target, direction, m], end)
                missing[target, direction, m] -= 1
                other = net.replica_device[target]
                if missing[target, direction, m] == 0 and not waits[other] and other != d:
                    waits[other] = True
                    stack[top] = other
                    top += 1
        position[d] = x
    if done < np.sum(lengths):
        return FAR, FAR
    return objective(net, heads_tails, by_span), int64(np.sum(clock))


@kernel
def objective(net: Net, heads_tails: HeadsAndTails, by_span: bool) -> int:
    """What the starts in `heads_tails` amount to; notes what follows the last action of every stage replica."""
    value, latest = int64(-FAR), net.scalars[MICROBATCHES] - 1
    stage_end = np.zeros(net.synchronisation.shape[0], np.int64)
    for n in range(net.replica_stage.shape[0]):
        d = net.replica_device[n]
        after = net.synchronisation[net.replica_stage[n]] + net.scalars[TAIL]
        heads_tails.offset[n] = -heads_tails.start[d][0] if by_span else after
        last = heads_tails.place[n, INPUT_GRAD, latest]
        if last < 0:  # the orders end before the iteration does
            return int64(FAR)
        if net.has_weight[n]:
            last = max(last, heads_tails.place[n, WEIGHT_GRAD, latest])
        end = heads_tails.start[d, last] + heads_tails.span[d, last]
        value = max(value, end + heads_tails.offset[n])
        stage_end[net.replica_stage[n]] = max(stage_end[net.replica_stage[n]], end)
    return value if by_span else value + lost_ticks(net, stage_end)


@kernel
def tails(net: Net, heads_tails: HeadsAndTails) -> None:
    """Longest paths from every action to the end, queues on links left out, in the reverse of the order of `heads`."""
    device_orders, lengths = heads_tails.device_orders, heads_tails.lengths
    tail, leave, span = heads_tails.tail, heads_tails.leave, heads_tails.span
    place, order = heads_tails.place, heads_tails.order
    for k in range(np.sum(lengths) - 1, -1, -1):
        d, x = order[k, DEVICE], order[k, POSITION]
        n, kind, m = device_orders[d, x] >> 2, device_orders[d, x] & 3, heads_tails.number[d, x]
        longest = heads_tails.offset[n]
        if kind != 2:
            direction = 0 if kind == 0 else 1
            for f in range(net.transfer_start[2 * n + direction], net.transfer_start[2 * n + direction + 1]):
                target = net.transfer_target[f]
                e = net.replica_device[target]
                y = place[target, direction, m]
                longest = max(longest, net.transfer_duration[f] + span[e, y] + tail[e, y])
        leave[d, x] = longest
        if x + 1 < lengths[d]:
            longest = max(longest, span[d, x + 1] + tail[d, x + 1])
        tail[d, x] = longest


@kernel
def _may_pass(first: int, second: int, first_number: int, second_number: int) -> bool:
    """Whether two neighbours of a device order may change places: F before I before W of a stage replica, each kind in
    order.

    W of a stage replica are all alike, so that they may pass each other.
    """
    if first >> 2 != second >> 2:
        return True
    a, b = first & 3, second & 3
    if a == 3 or b == 3:
        return False
    if a == b:
        return a == 2
    return not (a < b and first_number >= second_number)


@kernel
def reach(net: Net, heads_tails: HeadsAndTails, d: int, i: int, step: int, most: int) -> int:
    """How far action i of device d can move towards `step` within its stage replica's order and memory."""
    device_orders, lengths = heads_tails.device_orders, heads_tails.lengths
    code, budget, number = device_orders[d, i], net.devices[d, MEMORY], heads_tails.number[d, i]
    _, change = memory_steps(net, code >> 2, code & 3)
    j = i
    while abs(j + step - i) <= most and 0 <= j + step < lengths[d]:
        other, k = device_orders[d, j + step], heads_tails.number[d, j + step]
        if not (_may_pass(code, other, number, k) if step > 0 else _may_pass(other, code, k, number)):
            break
        need, _ = memory_steps(net, other >> 2, other & 3)
        if heads_tails.before[d, j + step] + need - step * change > budget:
            break
        j += step
        if other == code:  # a W that has passed a W is now that one
            number = k
    return j


@kernel
def _fits_at(net: Net, heads_tails: HeadsAndTails, d: int, i: int, j: int) -> bool:
    """Whether the action at i of device d has the memory it needs at j."""
    device_orders = heads_tails.device_orders
    need, change = memory_steps(net, device_orders[d, i] >> 2, device_orders[d, i] & 3)
    held = heads_tails.before[d, j]
    if j > i:
        _, added = memory_steps(net, device_orders[d, j] >> 2, device_orders[d, j] & 3)
        held += added - change
    return held + need <= net.devices[d, MEMORY]


@kernel
def judge(heads_tails: HeadsAndTails, d: int, i: int, j: int) -> int:
    """Longest path through the actions that a move from i to j shifts, as far as it can be seen from here."""
    start, ready, span = heads_tails.start, heads_tails.ready, heads_tails.span
    tail, leave = heads_tails.tail, heads_tails.leave
    low, high = min(i, j), max(i, j)
    now = start[d, low - 1] + span[d, low - 1] if low > 0 else int64(0)
    after = span[d, high + 1] + tail[d, high + 1] if high + 1 < heads_tails.lengths[d] else int64(-FAR)
    size = high - low + 1
    ends = np.empty(size, np.int64)
    for k in range(size):
        x = moved(i, j, low + k)
        now = max(now, ready[d, x]) + span[d, x]
        ends[k] = now
    worst = int64(-FAR)
    for k in range(size - 1, -1, -1):
        x = moved(i, j, low + k)
        rest = max(after, leave[d, x])
        worst = max(worst, ends[k] + rest)
        after = span[d, x] + rest
    return worst


@kernel
def moved(i: int, j: int, x: int) -> int:
    """Which position stands at x once the action at i has moved to j."""
    if x == j:
        return i
    if i < j:
        return x + 1
    return x - 1


@kernel
def rotate(device_order: ShortIntegers, i: int, j: int) -> None:
    """Take the action at i out and put it in at j."""
    code = device_order[i]
    step = 1 if j > i else -1
    for x in range(i, j, step):
        device_order[x] = device_order[x + step]
    device_order[j] = code


@kernel
def critical(heads_tails: HeadsAndTails, value: int, blocks: Integers) -> int:
    """Runs of actions on longest paths without a wait between them, [k, 3] device, first, last; returns how many."""
    start, tail, span, lengths = heads_tails.start, heads_tails.tail, heads_tails.span, heads_tails.lengths
    count = 0
    for d in range(lengths.shape[0]):
        x = 0
        while x < lengths[d]:
            if start[d, x] + span[d, x] + tail[d, x] < value:
                x += 1
                continue
            first = x
            while (
                x + 1 < lengths[d]
                and start[d, x + 1] == start[d, x] + span[d, x]
                and start[d, x + 1] + span[d, x + 1] + tail[d, x + 1] >= value
            ):
                x += 1
            if x > first:  # an action that waits and is waited for gains nothing from its neighbours
                blocks[count, BLOCK_DEVICE], blocks[count, BLOCK_FIRST], blocks[count, BLOCK_LAST] = d, first, x
                count += 1
            x += 1
    return count


REACH = 800
"""Positions that an action moves at most."""


@kernel
def propose(
    net: Net, heads_tails: HeadsAndTails, blocks: Integers, tabu: Integers, step: int, best: int, samples: int
) -> tuple[int, int, int]:
    """The best of some random moves along the critical path: device, from, to; -1 if none.

    `tabu` [N, 3, M]: the step from which on an action may move again, unless that gives less than `best`.
    """
    best_move = (int64(-1), int64(0), int64(0))
    best_worst = FAR
    for _ in range(samples):
        b = np.random.randint(blocks.shape[0])
        d, first, last = blocks[b, BLOCK_DEVICE], blocks[b, BLOCK_FIRST], blocks[b, BLOCK_LAST]
        direction = 1 if np.random.random() < 0.5 else -1
        near = np.random.random()
        size = last - first + 1
        if near < 0.5:
            back = min(size - 1, int64(np.random.exponential(4.0)))
            i = last - back if direction > 0 else first + back
        else:
            i = first + np.random.randint(size)
        far = reach(net, heads_tails, d, i, direction, REACH)
        if far == i:
            continue
        j = far
        chance = np.random.random()
        if chance < 0.2:
            j = i + direction
        elif chance < 0.4:
            j = i + direction * (1 + np.random.randint(abs(far - i)))
        elif chance < 0.8:
            edge = last if direction > 0 else first
            if (edge - i) * direction > 0 and (far - edge) * direction >= 0:
                j = edge
        if not _fits_at(net, heads_tails, d, i, j):
            continue
        worst = judge(heads_tails, d, i, j)
        code = heads_tails.device_orders[d, i]
        if tabu[code >> 2, min(code & 3, 2) if code & 3 != 3 else 1, heads_tails.number[d, i]] > step and worst >= best:
            continue
        if worst < best_worst or (worst == best_worst and np.random.random() < 0.5):
            best_worst = worst
            best_move = (d, i, j)
    return best_move


@kernel
def improve(
    net: Net, device_orders: ShortIntegers, lengths: Integers, search: TabuSearch, by_span: bool, stop: Integers
) -> tuple[int, int]:
    """Tabu search on the device orders, in place; (objective, sum of last ends) of the best, which `device_orders` then
    hold. It ends early once `stop[0]` is set.
    """
    np.random.seed(search.seed)
    heads_tails = make_heads_and_tails(net, device_orders, lengths)
    value, total = heads(net, heads_tails, by_span)
    best_value, best_total, best_orders = value, total, device_orders.copy()
    tabu = np.zeros((net.replica_stage.shape[0], 3, net.scalars[MICROBATCHES]), np.int64)
    blocks, since = np.zeros((np.sum(lengths), 3), np.int64), 0
    if value < FAR:
        tails(net, heads_tails)
    for step in range(search.steps):
        if best_value <= search.lower_bound or value >= FAR or stop[0] != 0:
            break
        count = critical(heads_tails, value, blocks)
        if count == 0:
            break
        d, i, j = propose(net, heads_tails, blocks[:count], tabu, step, best_value, search.samples)
        if d < 0:
            since += 1
            continue
        code = device_orders[d, i]
        until = step + 4 + np.random.randint(12)
        tabu[code >> 2, min(code & 3, 2) if code & 3 != 3 else 1, heads_tails.number[d, i]] = until
        rotate(device_orders[d], i, j)
        value, total = heads(net, heads_tails, by_span)
        if value >= FAR:
            rotate(device_orders[d], j, i)
            value, total = heads(net, heads_tails, by_span)
        since += 1
        if value < best_value or (value == best_value and total < best_total):
            if value < best_value:
                since = 0
            best_value, best_total = value, total
            best_orders[:] = device_orders
        if since >= search.patience:
            since = 0
            device_orders[:] = best_orders
            value, total = heads(net, heads_tails, by_span)
        tails(net, heads_tails)
    device_orders[:] = best_orders
    return best_value, best_total


@kernel
def _order_is_legal(net: Net, device_orders: ShortIntegers, lengths: Integers, d: int) -> bool:
    """Whether the device order of device d keeps F before I before W in every stage replica, and its memory."""
    count = np.zeros((net.replica_stage.shape[0], 3), np.int64)
    held = int64(0)
    for x in range(lengths[d]):
        n, kind = device_orders[d, x] >> 2, device_orders[d, x] & 3
        during, _ = memory_steps(net, n, kind)
        if held + during > net.devices[d, MEMORY]:
            return False
        held += count_action(net, count, n, kind, 1)
        if not count[n, FORWARD] >= count[n, INPUT_GRAD] >= count[n, WEIGHT_GRAD]:
            return False
    return True


@kernel
def polish(
    net: Net, device_orders: ShortIntegers, lengths: Integers, cooling: Cooling, by_span: bool, stop: Integers
) -> tuple[int, int]:
    """Local search on the device orders of a net, in place: move one action at a time, keep what is not worse.

    Returns the best (objective, sum of last ends); `device_orders` hold the best order found. The first temperature
    stays. It ends early once `stop[0]` is set.
    """
    np.random.seed(cooling.seed)
    no_policy = Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), None)
    makespan, span, total = play(net, no_policy, device_orders, lengths, True, FAR, None)
    value = span if by_span else makespan
    best_value, best_total, best_orders = value, total, device_orders.copy()
    users = np.nonzero(lengths > 1)[0]
    for _ in range(cooling.steps):
        if stop[0] != 0:
            break
        d: int = users[np.random.randint(users.shape[0])]
        i = np.random.randint(lengths[d])
        reach = 1
        while reach < lengths[d] and np.random.random() < 0.6:
            reach += 1 + reach // 2
        j = i + (np.random.randint(reach) + 1) * (1 if np.random.random() < 0.5 else -1)
        j = min(max(j, 0), lengths[d] - 1)
        if i == j or device_orders[d, i] == device_orders[d, j]:
            continue
        rotate(device_orders[d], i, j)
        accepted = False
        if _order_is_legal(net, device_orders, lengths, d):
            slack = int64(-np.log(1 - np.random.random()) * cooling.first * value)
            threshold = FAR if by_span else value + slack + 1
            makespan, span, new_total = play(net, no_policy, device_orders, lengths, True, threshold, None)
            new_value = span if by_span else makespan
            if new_value < FAR:
                accepted = new_value < value + slack or (new_value <= value and new_total <= total)
        if not accepted:
            rotate(device_orders[d], j, i)
            continue
        value, total = new_value, new_total
        if value < best_value or (value == best_value and total < best_total):
            best_value, best_total = value, total
            best_orders[:] = device_orders
    device_orders[:] = best_orders
    return best_value, best_total
