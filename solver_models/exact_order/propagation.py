"""Windows of the actions of one case, narrowed until nothing changes or one is empty; compiled.

*Suppose that some order ends below the threshold.* Every action then lies in a window, from its earliest start to its
latest end. Of two actions of one device one comes first; what cannot come first comes second. Every rule below only
removes what no such order does, so that an empty window refutes the supposition. docs/proofs/exact.md lists the rules.
Of one device, with = for the ticks of an action from its earliest start on, and . for the rest of its window:

    tick   0         10        20
    I0     ===......                  F2 before I0 would let I0 end at 2 + 5 + 3 > 9, so that I0 comes first
    F2       =====......              (`_decide_pairs`)
    F2        =====.....              and F2 starts after it (`_wait_for_prior`)

    x      ====......                 x, y and z need 4 + 4 + 3 > 10 ticks, so that z cannot be one of those that end
    y      ====......                 by 10: it comes after both x and y (`find_edges`)
    z      ===.................
    z              ===.........

Between devices, `_follow_arcs` raises the starts of what waits for others, and lowers the ends of what others wait for.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY
from solver_models.exact_order.action_sets import (
    has,
    limb_of,
    num_common,
    num_limbs,
    put,
    put_before,
    sum_of,
    unknown,
)
from solver_models.exact_order.link_queues import (
    DEVICE,
    IS_GRADIENT,
    MAX_SENDS,
    QUEUE,
    RECEIVER,
    SENDER,
    TICKS,
    arrival_lags,
    list_sends,
)
from solver_models.exact_order.lower_bounds import (
    FORWARD_END,
    FORWARD_TAIL,
    INPUTS,
    RETURN_END,
    RETURN_TAIL,
    RETURNS_FROM,
    find_colocated,
    split_backward,
)
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers
from solver_models.moves.annealing import longest_order
from solver_models.simulation.columns import REST, RETURNING
from solver_models.simulation.evaluator import MICROBATCHES, SPLIT, TAIL, Net

MAX_NARROWINGS = 80
"""Passes over all rules; each leaves valid windows."""


OPEN_PASS, SPLIT_PASS, FUSED_PASS = 0, 1, 2
"""What is known of a backward pass: nothing; I and W are two actions; they are one, B, in two parts without a pause."""


BEFORE, AFTER, TICKS_BETWEEN, AFTER_FUSED = range(4)
"""Columns of arcs."""

BEGIN, END = 0, 1
"""Columns of the span of arcs of an action."""

F_BITS, I_BITS, W_BITS = range(3)
"""Columns of actions by kind, as bits."""


class NetActions(NamedTuple):
    """The actions of a net, J = 3 N M of them: (replica * 3 + kind) * M + microbatch; I and W stand for B as well."""

    arcs: Integers
    """[A, 4] what precedes what, the ticks in between, and 1 if it follows the end of a B, not of its I; in topological
    order of the former."""
    span: Integers
    """[J, 2] where the arcs of an action begin and end."""
    length: Integers
    """[D] actions of a device."""
    own: Integers
    """[D, X] its actions."""
    place: Integers
    """[J] index into `own`; -1 if there is no such action."""
    kinds: Integers
    """[3 N] sets (`action_sets`): the actions of a stage replica of a kind, on its device."""
    fusible: Integers
    """[N] 1 where B is shorter than I and W: then each of the stage replica's backward passes has the choice."""
    sends: Integers
    """[S, 6] `list_sends`."""


class _Precedence(NamedTuple):
    """What comes before what on one device."""

    prior: Integers
    """[X] sets: actions that come before."""
    after: Integers
    """[X] sets: actions that come after."""
    num_actions: int
    """Of the device."""


class TimeWindows(NamedTuple):
    """What is known of every order that ends in time."""

    row: Integers
    """[F] all figures but weighted degrees, one after the other: those below are parts of it."""
    start: Integers
    """[J] earliest start."""
    end: Integers
    """[J] latest end."""
    time: Integers
    """[J] least ticks; of I and W those of B, in two parts, unless it is known that they are two actions."""
    late: Integers
    """[J] ticks after the end of an I until its B ends, if it is known to be one; else 0."""
    pass_kind: Integers
    """[N, M] `SPLIT_PASS` or `FUSED_PASS` once it is known whether I and W are one, else `OPEN_PASS`."""
    prior: Integers
    """[D, X] sets: actions of the device that come before."""
    after: Integers
    """[D, X] sets: actions of the device that come after."""
    seen: Integers
    """[2, D] `_mark_of` a device before its rules were last applied, without edges and with them: if it is still the
    same, they tell nothing new."""
    weighted_degree: Integers
    """[J] how often an action was left without a window, all over the search."""


@kernel
def job_of(n: int, kind: int, k: int, total: int) -> int:
    """The number of an action."""
    return (n * 3 + kind) * total + k


@kernel
def _make_arcs(net: Net, has_rest: Integers, fusible: Integers) -> tuple[Integers, Integers]:
    """[A, 4] the arcs between actions, microbatch by microbatch: F downwards, I upwards, W; and [J, 2] which are whose.

    W come in order unless some may be parts of B, which need not be.
    """
    num_replicas, total = net.replica_stage.shape[0], net.scalars[MICROBATCHES]
    arcs = np.zeros((total * (5 * num_replicas + net.transfer_target.shape[0]), 4), np.int64)
    span = np.zeros((3 * num_replicas * total, 2), np.int64)
    size, lags = 0, arrival_lags(net)
    for k in range(total):
        for x in range(3 * num_replicas):
            kind = x // num_replicas
            n = x % num_replicas if kind != 1 else num_replicas - 1 - x % num_replicas
            if kind == 2 and not has_rest[n]:
                continue
            job = job_of(n, kind, k, total)
            span[job, BEGIN] = size
            if k + 1 < total and not (kind == 2 and fusible[n]):
                arcs[size, BEFORE], arcs[size, AFTER], arcs[size, AFTER_FUSED] = job, job + 1, kind == 1
                size += 1
            if kind == 0 or (kind == 1 and has_rest[n]):
                arcs[size, BEFORE], arcs[size, AFTER] = job, job + total
                size += 1
            if kind < 2:
                for f in range(net.transfer_start[2 * n + kind], net.transfer_start[2 * n + kind + 1]):
                    arcs[size, BEFORE], arcs[size, TICKS_BETWEEN], arcs[size, AFTER_FUSED] = job, lags[f], kind == 1
                    arcs[size, AFTER] = job_of(net.transfer_target[f], kind, k, total)
                    size += 1
            span[job, END] = size
    return arcs[:size], span


@kernel
def make_jobs(net: Net, kinds: Integers) -> NetActions:
    """The actions of a net; `kinds`: zeros, with as many words as they need."""
    num_replicas, total = net.replica_stage.shape[0], net.scalars[MICROBATCHES]
    has_rest = net.has_weight * net.scalars[SPLIT]
    place = np.full(3 * num_replicas * total, -1)
    fusible = np.zeros(num_replicas, np.int64)
    count = np.zeros(net.devices.shape[0], np.int64)
    own = np.zeros((net.devices.shape[0], longest_order(net)), np.int64)
    for n in range(num_replicas):
        d = net.replica_device[n]
        if has_rest[n] and net.duration[n, BACKWARD] < net.duration[n, INPUT_GRAD] + net.duration[n, WEIGHT_GRAD]:
            fusible[n] = 1
        for kind in range(3 if has_rest[n] else 2):
            for k in range(total):
                job = job_of(n, kind, k, total)
                place[job], own[d, count[d]] = count[d], job
                put(kinds, 3 * n + kind, count[d])
                count[d] += 1
    arcs, span = _make_arcs(net, has_rest, fusible)
    return NetActions(arcs, span, count, own, place, kinds, fusible, list_sends(net))


@kernel
def _shaped(row: Integers, own: Integers, sets: Integers) -> Integers:
    """Figures of a row as two tables of sets of all devices, in as many words as `sets`."""
    devices, longest = own.shape
    if sets.ndim == 1:
        return row.reshape((2, devices, longest))
    return row.reshape((2, devices, longest, sets.shape[1]))


@kernel
def windows_of(jobs: NetActions, row: Integers, weighted_degree: Integers) -> TimeWindows:
    """The windows whose figures stand in a row."""
    (devices, longest), size, replicas = jobs.own.shape, jobs.place.shape[0], jobs.fusible.shape[0]
    passes, order = 4 * size + size // 3, devices * longest * num_limbs(jobs.kinds)
    by_job, by_device = row[: 4 * size].reshape((4, size)), row[passes : passes + 2 * order]
    pairs = _shaped(by_device, jobs.own, jobs.kinds)
    kinds, seen = row[4 * size : passes].reshape((replicas, -1)), row[passes + 2 * order :].reshape((2, devices))
    start, end, time, late = by_job[0], by_job[1], by_job[2], by_job[3]
    return TimeWindows(row, start, end, time, late, kinds, pairs[0], pairs[1], seen, weighted_degree)


@kernel
def make_windows(net: Net, jobs: NetActions, times: Integers, threshold: int) -> TimeWindows:
    """The windows that heads and tails leave below the threshold, and what comes before what in any case."""
    num_replicas, total, size = net.replica_stage.shape[0], net.scalars[MICROBATCHES], jobs.place.shape[0]
    last, parts, devices = threshold - 1 - net.scalars[TAIL], split_backward(net), jobs.own.shape[0]
    row = np.zeros(4 * size + size // 3 + 2 * jobs.own.size * num_limbs(jobs.kinds) + 2 * devices, np.int64)
    windows = windows_of(jobs, row, np.zeros(size, np.int64))
    start, end, time, pass_kind = windows.start, windows.end, windows.time, windows.pass_kind
    windows.seen[:] = -1
    for n in range(num_replicas):
        pass_kind[n] = OPEN_PASS if jobs.fusible[n] else SPLIT_PASS
        for k in range(total):
            forward, returning, rest = job_of(n, 0, k, total), job_of(n, 1, k, total), job_of(n, 2, k, total)
            time[forward], time[returning], time[rest] = net.duration[n, FORWARD], parts[RETURNING, n], parts[REST, n]
            start[forward] = max(0, times[FORWARD_END, n, k] - time[forward])
            start[returning] = max(0, times[RETURN_END, n, k] - time[returning])
            start[rest] = start[returning] + time[returning]
            end[forward] = last - max(0, times[FORWARD_TAIL, n, total - 1 - k])
            end[returning] = last - max(0, times[RETURN_TAIL, n, total - 1 - k])
            end[rest] = last - net.synchronisation[net.replica_stage[n]]
    _put_in_order(net, jobs, windows)
    return windows


@kernel
def _put_in_order(net: Net, jobs: NetActions, windows: TimeWindows) -> None:
    """What comes before what in any case: microbatches in order, F before I before W, and what feeds what."""
    num_replicas, total, colocated = net.replica_stage.shape[0], net.scalars[MICROBATCHES], find_colocated(net)
    for n in range(num_replicas):
        d = net.replica_device[n]
        prior, after, count = windows.prior[d], windows.after[d], jobs.length[d]
        for k in range(total):
            for kind in range(3):
                a = jobs.place[job_of(n, kind, k, total)]
                if a < 0:
                    continue
                if k + 1 < total and not (kind == 2 and jobs.fusible[n]):
                    put_before(prior, after, count, a, a + 1)
                if kind < 2 and jobs.place[job_of(n, kind + 1, k, total)] >= 0:
                    put_before(prior, after, count, a, jobs.place[job_of(n, kind + 1, k, total)])
                for m in range(num_replicas):
                    if kind < 2 and colocated[INPUTS if kind == 0 else RETURNS_FROM, n] >> m & 1:
                        put_before(prior, after, count, jobs.place[job_of(m, kind, k, total)], a)


@kernel
def split_pass(net: Net, jobs: NetActions, windows: TimeWindows, n: int, k: int) -> bool:
    """Let I and W of a backward pass be two actions; False if that contradicts what is known."""
    total, d = net.scalars[MICROBATCHES], net.replica_device[n]
    windows.pass_kind[n, k] = SPLIT_PASS
    windows.time[job_of(n, 1, k, total)], windows.time[job_of(n, 2, k, total)] = (
        net.duration[n, INPUT_GRAD],
        net.duration[n, WEIGHT_GRAD],
    )
    own = jobs.place[job_of(n, 2, k, total)]
    for other in range(total):
        if other != k and windows.pass_kind[n, other] == SPLIT_PASS:
            a, b = (
                (own, jobs.place[job_of(n, 2, other, total)])
                if k < other
                else (jobs.place[job_of(n, 2, other, total)], own)
            )
            if not has(windows.prior[d], b, a) and not put_before(
                windows.prior[d], windows.after[d], jobs.length[d], a, b
            ):
                return False
    return True


@kernel
def fuse_pass(net: Net, windows: TimeWindows, n: int, k: int) -> None:
    """Let I and W of a backward pass be one action."""
    total = net.scalars[MICROBATCHES]
    windows.pass_kind[n, k] = FUSED_PASS
    windows.late[job_of(n, 1, k, total)] = windows.time[job_of(n, 2, k, total)]


@kernel
def is_late_as_one(jobs: NetActions, windows: TimeWindows, job: int, rest: int, start: int) -> bool:
    """Whether a B whose I starts at `start` is late for who waits for its gradient, or for its own end."""
    leave = start + windows.time[job] + windows.time[rest]
    if leave > windows.end[rest]:
        return True
    for x in range(jobs.span[job, BEGIN], jobs.span[job, END]):
        target = jobs.arcs[x, AFTER]
        if (
            jobs.arcs[x, AFTER_FUSED]
            and leave + jobs.arcs[x, TICKS_BETWEEN] + windows.time[target] > windows.end[target]
        ):
            return True
    return False


@kernel
def is_branched_on(net: Net, jobs: NetActions, windows: TimeWindows, i: int, j: int) -> bool:
    """Whether an order of two actions is worth deciding: not of W of one stage replica, nor of what is part of a B."""
    total = net.scalars[MICROBATCHES]
    n, m = i // total // 3, j // total // 3
    one, two = i // total % 3 == 2, j // total % 3 == 2
    if one and jobs.fusible[n] and (windows.pass_kind[n, i % total] == FUSED_PASS or (two and n == m)):
        return False
    return not (two and jobs.fusible[m] and windows.pass_kind[m, j % total] == FUSED_PASS)


@kernel
def _keep_adjacent(windows: TimeWindows, d: int, job: int, rest: int, a: int, b: int, count: int) -> bool:
    """Let nothing come between I and W of a B, which are a and b on their device; False if something must."""
    prior, after = windows.prior[d], windows.after[d]
    windows.start[job] = max(windows.start[job], windows.start[rest] - windows.time[job])
    windows.end[rest] = min(windows.end[rest], windows.end[job] + windows.time[rest])
    for x in range(count):
        if x != a and x != b:
            if has(prior, b, x) and not has(prior, a, x) and not put_before(prior, after, count, x, a):
                return False
            if has(after, a, x) and not has(after, b, x) and not put_before(prior, after, count, b, x):
                return False
    return True


@kernel
def _decide_passes(net: Net, jobs: NetActions, windows: TimeWindows) -> bool:
    """A backward pass is split if as one it would be late, or if something comes between; False if it cannot be."""
    total = net.scalars[MICROBATCHES]
    for n in range(jobs.fusible.shape[0]):
        d = net.replica_device[n]
        for k in range(total if jobs.fusible[n] else 0):
            job, rest = job_of(n, 1, k, total), job_of(n, 2, k, total)
            a, b = jobs.place[job], jobs.place[rest]
            if (
                windows.pass_kind[n, k] == OPEN_PASS
                and (
                    num_common(windows.after[d], a, windows.prior[d], b) > 0
                    or is_late_as_one(jobs, windows, job, rest, windows.start[job])
                )
                and not split_pass(net, jobs, windows, n, k)
            ):
                return False
            if windows.pass_kind[n, k] == FUSED_PASS and not _keep_adjacent(
                windows, d, job, rest, a, b, jobs.length[d]
            ):
                return False
    return True


@kernel
def _follow_arcs(arcs: Integers, time: Integers, late: Integers, start: Integers, end: Integers) -> None:
    """Raise starts along the arcs, and lower ends against them."""
    for x in range(arcs.shape[0]):
        a, b = arcs[x, BEFORE], arcs[x, AFTER]
        start[b] = max(start[b], start[a] + time[a] + arcs[x, TICKS_BETWEEN] + arcs[x, AFTER_FUSED] * late[a])
    for x in range(arcs.shape[0] - 1, -1, -1):
        a, b = arcs[x, BEFORE], arcs[x, AFTER]
        end[a] = min(end[a], end[b] - time[b] - arcs[x, TICKS_BETWEEN] - arcs[x, AFTER_FUSED] * late[a])


@kernel
def _decide_pairs(
    prior: Integers, after: Integers, count: int, release: Integers, due: Integers, time: Integers
) -> int:
    """Of two actions, the one that cannot come first comes second; one of them if neither can, else -1."""
    full = (int64(1) << (count & 63)) - 1
    for a in range(count):
        for w in range(num_limbs(prior)):
            left = (
                full & ~(prior[a] | after[a] | (int64(2) << a) - 1)
                if prior.ndim == 1
                else unknown(prior, after, count, a, w)
            )
            for b in range(max(a + 1, w << 6), min(count, (w + 1) << 6) if left else 0):
                if left >> (b & 63) & 1 and not (has(prior, a, b) or has(after, a, b)):
                    both = time[a] + time[b]
                    if release[a] + both > due[b]:
                        if release[b] + both > due[a] or not put_before(prior, after, count, b, a):
                            return b
                    elif release[b] + both > due[a] and not put_before(prior, after, count, a, b):
                        return b
    return -1


@kernel
def _sort_by(order: Integers, count: int, values: Integers) -> None:
    """Sort the first `count` entries of `order` by their values; nearly sorted ones are sorted fast."""
    for x in range(1, count):
        entry, y = order[x], x - 1
        while y >= 0 and values[order[y]] > values[entry]:
            order[y + 1] = order[y]
            y -= 1
        order[y + 1] = entry


@kernel
def _wait_for_prior(
    prior: Integers, count: int, order: Integers, release: Integers, time: Integers, raised: Integers
) -> None:
    """An action starts after all that come before it have run one by one; `order`: by release; `raised`: scratch."""
    for b in range(count):
        first, now = limb_of(prior, b, 0), int64(-1) << 60
        for x in range(count if first or num_limbs(prior) > 1 else 0):
            limb = first if prior.ndim == 1 else limb_of(prior, b, order[x] >> 6)
            if limb >> (order[x] if prior.ndim == 1 else order[x] & 63) & 1:
                now = max(now, release[order[x]]) + time[order[x]]
        raised[b] = max(release[b], now)
    release[:count] = raised[:count]


@kernel
def find_edges(
    count: int, order: Integers, release: Integers, due: Integers, time: Integers, later: Integers, raised: Integers
) -> int:
    """What cannot run within a set of actions, before the set's last due, runs after them; -1, or the last of a set
    that is too long.

    Carlier and Pinson's rule as Baptiste, Le Pape and Nuijten give it; `order`: by release; `raised`, `later`: scratch.
    """
    raised[:count] = release[:count]
    for y in range(count):
        limit = due[order[y]]
        work, latest = int64(0), int64(-1) << 60
        for x in range(count - 1, -1, -1):
            i = order[x]
            if due[i] <= limit:
                work += time[i]
                latest = max(latest, release[i] + work)
                if latest > limit:
                    return order[y]
            later[x] = latest
        earlier = int64(-1) << 60
        for x in range(count):
            i = order[x]
            if due[i] <= limit:
                earlier = max(earlier, release[i] + work)
                work -= time[i]
            elif time[i] > 0:
                if work > 0 and release[i] + work + time[i] > limit:
                    raised[i] = max(raised[i], later[x])
                if earlier + time[i] > limit:
                    raised[i] = max(raised[i], latest)
    release[:count] = raised[:count]
    return -1


@kernel
def _least_held(forwards: int, returns: int, rests: int, held: int, kept: int) -> int:
    """Least units of a stage replica of which so many F have started, and at most so many I and W have ended."""
    returns = min(returns, forwards)
    rests = min(rests, returns)
    return (returns - rests) * min(held, kept) + (forwards - returns) * held


@kernel
def _make_room(net: Net, jobs: NetActions, precedence: _Precedence, replicas: Integers) -> bool:
    """What must have ended before an F, or there would be no room for it, comes before it; False if there is none.

    `replicas`: those of the device.
    """
    bits, (prior, after, count) = jobs.kinds, precedence
    total, most, workspace = net.scalars[MICROBATCHES], int64(0), int64(0)
    for n in replicas:
        most += total * max(net.held[n], net.weight_stash[n])
        workspace = max(workspace, net.workspace[n])
    if most + workspace <= net.devices[net.replica_device[replicas[0]], MEMORY]:
        return True
    used = np.empty(replicas.shape[0], np.int64)
    for y in range(replicas.shape[0]):
        n = replicas[y]
        for a in range(count):
            if not has(bits, 3 * n + F_BITS, a):
                continue
            room = net.devices[net.replica_device[n], MEMORY] - net.workspace[n]
            for x in range(replicas.shape[0]):
                m = replicas[x]
                forwards = num_common(prior, a, bits, 3 * m + F_BITS) + (m == n)
                returns = total - num_common(after, a, bits, 3 * m + I_BITS)
                has_rest = jobs.place[job_of(m, 2, 0, total)] >= 0
                rests = total - num_common(after, a, bits, 3 * m + W_BITS) if has_rest else returns
                kept = net.weight_stash[m] if has_rest else 0
                used[x] = _least_held(forwards, returns, rests, net.held[m], kept)
                room -= used[x]
            if room < 0:
                return False
            for x in range(replicas.shape[0]):
                m = replicas[x]
                if not _force_room(net, jobs, precedence, m, a, used[x] + room):
                    return False
    return True


@kernel
def _force_room(net: Net, jobs: NetActions, precedence: _Precedence, m: int, a: int, room: int) -> bool:
    """Put as many I and W of replica m before action a as it takes for the stage replica to hold no more than `room`
    then.

    Of a stage replica that gains by B, the W need not come in order: none is put anywhere.
    """
    total, bits, (prior, after, count) = net.scalars[MICROBATCHES], jobs.kinds, precedence
    has_rest = jobs.place[job_of(m, 2, 0, total)] >= 0
    forwards = num_common(prior, a, bits, 3 * m + F_BITS) + has(bits, 3 * m + F_BITS, a)
    if forwards * net.held[m] <= room and not has_rest:
        return True
    returns = total - num_common(after, a, bits, 3 * m + I_BITS)
    rests = total - num_common(after, a, bits, 3 * m + W_BITS) if has_rest else returns
    kept = net.weight_stash[m] if has_rest else 0
    least_returns, least_rests = min(returns, forwards), min(returns, rests, forwards)
    while least_returns > 0 and _least_held(forwards, least_returns - 1, rests, net.held[m], kept) <= room:
        least_returns -= 1
    while least_rests > 0 and _least_held(forwards, returns, least_rests - 1, net.held[m], kept) <= room:
        least_rests -= 1
    if not has_rest or jobs.fusible[m]:
        least_rests = int64(0)
    for kind in range(1, 3):
        wanted = least_returns if kind == 1 else least_rests
        if wanted > 0:
            b = jobs.place[job_of(m, kind, wanted - 1, total)]
            if not has(prior, a, b) and not put_before(prior, after, count, b, a):
                return False
    return True


@kernel
def _mark_of(jobs: NetActions, windows: TimeWindows, d: int) -> int:
    """A number that grows with all that is known of a device, and with nothing else."""
    mark = sum_of(windows.prior[d])
    for x in range(jobs.length[d]):
        job = jobs.own[d, x]
        mark += windows.start[job] - windows.end[job] + windows.time[job]
    return mark


@kernel
def _narrow_ends(
    count: int, order: Integers, bounds: Integers, due: Integers, time: Integers, scratch: Integers, has_edges: bool
) -> int:
    """The rule on sums, and that on edges if wanted, on releases, or on dues seen from the other end; as `find_edges`.

    `bounds`: what comes before an action; `scratch` [6, X]: releases first.
    """
    release = scratch[0]
    _sort_by(order, count, release)
    _wait_for_prior(bounds, count, order, release, time, scratch[5])
    if not has_edges:
        return -1
    _sort_by(order, count, release)
    return find_edges(count, order, release, due, time, scratch[4], scratch[5])


@kernel
def _narrow_device(net: Net, jobs: NetActions, windows: TimeWindows, d: int, scratch: Integers, has_edges: bool) -> int:
    """Apply the rules of one device once, edges if wanted; an action that is left without a window, else -1."""
    replicas = net.device_replicas[net.device_start[d] : net.device_start[d + 1]]
    count, own, prior, after = jobs.length[d], jobs.own[d], windows.prior[d], windows.after[d]
    release, due, time, order = scratch[0], scratch[1], scratch[2], scratch[3]
    for x in range(count):
        release[x], due[x], time[x], order[x] = windows.start[own[x]], windows.end[own[x]], windows.time[own[x]], x
        if release[x] + time[x] > due[x]:
            return x
    lost = _decide_pairs(prior, after, count, release, due, time)
    if lost >= 0:
        return lost
    if not _make_room(net, jobs, _Precedence(prior, after, count), replicas):
        return 0
    lost = _narrow_ends(count, order, prior, due, time, scratch, has_edges)
    if lost >= 0:
        return lost
    for x in range(count):
        windows.start[own[x]] = release[x]
        release[x], due[x] = -due[x], -release[x]
    lost = _narrow_ends(count, order, after, due, time, scratch, has_edges)
    if lost >= 0:
        return lost
    for x in range(count):
        windows.end[own[x]] = -release[x]
    return -1


@kernel
def _narrow_devices(net: Net, jobs: NetActions, windows: TimeWindows, scratch: Integers, has_edges: bool) -> int:
    """Apply the rules of all devices where something is new: how many these are, or -1 if no order is left."""
    count, seen = 0, windows.seen[1 if has_edges else 0]
    for d in range(jobs.length.shape[0]):
        mark = _mark_of(jobs, windows, d)
        if jobs.length[d] > 0 and mark != seen[d]:
            seen[d], count = mark, count + 1
            lost = _narrow_device(net, jobs, windows, d, scratch, has_edges)
            if lost >= 0:
                windows.weighted_degree[jobs.own[d, lost]] += 1
                return -1
    return count


@kernel
def _decide_sends(jobs: NetActions, windows: TimeWindows, own: Integers, ready: Integers, due: Integers) -> bool:
    """Of two actions of one device, one comes second if what it sends would make the other's late; False if both do."""
    d, place = own[0, DEVICE], jobs.place
    prior, after = windows.prior[d], windows.after[d]
    for x in range(own.shape[0]):
        a = place[own[x, SENDER]]
        for y in range(own.shape[0]):
            b = place[own[y, SENDER]]
            is_late = a != b and ready[x] + own[x, TICKS] + own[y, TICKS] > due[y]
            if is_late and not has(prior, a, b) and not put_before(prior, after, jobs.length[d], b, a):
                return False
    return True


@kernel
def _wait_on_link(
    jobs: NetActions, windows: TimeWindows, own: Integers, ready: Integers, due: Integers, order: Integers
) -> None:
    """What a device sends leaves after all that it is known to send before, and before all that is known to follow."""
    d, place, count = own[0, DEVICE], jobs.place, own.shape[0]
    prior, after = windows.prior[d], windows.after[d]
    _sort_by(order, count, ready)
    for b in range(count):
        job, moment = own[b, SENDER], int64(-1) << 60
        has_any = num_limbs(prior) > 1 or limb_of(prior, place[job], 0)
        for x in range(count if has_any else 0):
            if has(prior, place[job], place[own[order[x], SENDER]]):
                moment = max(moment, ready[order[x]]) + own[order[x], TICKS]
        target = own[b, RECEIVER]
        windows.start[target] = max(windows.start[target], max(ready[b], moment) + own[b, TICKS])
    _sort_by(order, count, due)
    for b in range(count):
        job, moment = own[b, SENDER], int64(1) << 60
        has_any = num_limbs(after) > 1 or limb_of(after, place[job], 0)
        for x in range(count - 1 if has_any else -1, -1, -1):
            if has(after, place[job], place[own[order[x], SENDER]]):
                moment = min(moment, due[order[x]]) - own[order[x], TICKS]
        late = own[b, IS_GRADIENT] * windows.late[job]
        windows.end[job] = min(windows.end[job], min(due[b], moment) - own[b, TICKS] - late)


@kernel
def _narrow_queues(jobs: NetActions, windows: TimeWindows, scratch: Integers) -> bool:
    """Apply the rules of the queues on links; False if no order is left."""
    first, ready, due, order = 0, scratch[0], scratch[1], scratch[2]
    while first < jobs.sends.shape[0]:
        end = first
        while end < jobs.sends.shape[0] and jobs.sends[end, QUEUE] == jobs.sends[first, QUEUE]:
            job, target, x = jobs.sends[end, SENDER], jobs.sends[end, RECEIVER], end - first
            ready[x] = windows.start[job] + windows.time[job] + jobs.sends[end, IS_GRADIENT] * windows.late[job]
            due[x], order[x] = windows.end[target] - windows.time[target], x
            end += 1
        own = jobs.sends[first:end]
        if not _decide_sends(jobs, windows, own, ready, due):
            return False
        _wait_on_link(jobs, windows, own, ready, due, order)
        first = end
    return True


@kernel
def narrow(net: Net, jobs: NetActions, windows: TimeWindows) -> bool:
    """Apply all rules until nothing changes, edges where the others tell nothing new; False if no order is left."""
    scratch = np.empty((6, max(jobs.own.shape[1], MAX_SENDS)), np.int64)
    has_choice, has_edges = jobs.fusible.sum() > 0, False
    for _ in range(MAX_NARROWINGS):
        passes_before = windows.pass_kind.sum()
        _follow_arcs(jobs.arcs, windows.time, windows.late, windows.start, windows.end)
        if has_choice and not _decide_passes(net, jobs, windows):
            return False
        if not _narrow_queues(jobs, windows, scratch):
            return False
        count = _narrow_devices(net, jobs, windows, scratch, has_edges)
        if count < 0:
            return False
        is_same = count == 0 and windows.pass_kind.sum() == passes_before
        if is_same and has_edges:
            return True
        has_edges = is_same
    return True
