"""Branch and bound over the orders of one case: windows are narrowed, then an open pair of actions is put in order.

Every node also plays an order made of its windows. Where B is shorter than I and W, whether a backward pass is one
action is branched on as well: first of all where an order would be in time if only nothing were lost by splitting.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.exact_order.action_sets import ONE_LIMB, num_limbs, put_before, unknown
from solver_models.exact_order.lower_bounds import (
    MAX_REPLICAS,
    find_colocated,
    most_in_flight,
    settle_times,
    split_backward,
)
from solver_models.exact_order.propagation import (
    AFTER,
    AFTER_FUSED,
    BEGIN,
    END,
    FUSED_PASS,
    OPEN_PASS,
    TICKS_BETWEEN,
    NetActions,
    TimeWindows,
    fuse_pass,
    is_branched_on,
    is_late_as_one,
    job_of,
    make_jobs,
    make_windows,
    narrow,
    split_pass,
)
from solver_models.exact_order.shaving import shave
from solver_models.instance import INPUT_GRAD, WEIGHT_GRAD, Integers, ShortIntegers
from solver_models.moves.annealing import longest_order, overflow
from solver_models.simulation.evaluator import FAR, MICROBATCHES, SPLIT, TAIL, Net, Policy, peak_excess, play

MAX_DEPTH = 600
"""Most decisions on a path; a device of 48 actions has 1,128 pairs, but few are open for long."""

RUN_GROWTH, SHAVED_RUN = 4, 10
"""The search starts again, with the weighted degrees learnt, and each run is so many times as long as the one before;
from runs of so many times the first on, windows are shaved first."""

PLAYED = 8
"""After the first run, one in so many nodes plays an order, beside those in which nothing is open."""


class Decisions(NamedTuple):
    """What a path has decided, and the windows before each decision."""

    what: Integers
    """[X, 3] device, first and second action; or -1, stage replica and microbatch of a backward pass that is one (or
    two)."""
    is_one: Integers
    """[X] of such a pass: 1 if it was made one first."""
    due: Integers
    """[X] the best objective then."""
    windows: Integers
    """[X, F] their row."""


class _Draft(NamedTuple):
    """An order made of windows."""

    order: Integers
    """[D, Y] actions of a device, by their place."""
    begin: Integers
    """[J] when they would start if they did."""
    cause: Integers
    """[J] the action that each waits for; -1 if none."""
    device_orders: ShortIntegers
    """[D, longest] the same in codes."""
    lengths: Integers
    """[D] how many."""


class Incumbent(NamedTuple):
    """The best order so far; zeros before the first."""

    device_orders: ShortIntegers
    """[D, longest] replica * 4 + kind."""
    lengths: Integers
    """[D] actions."""


@kernel
def make_decisions(windows: TimeWindows, most: int) -> Decisions:
    """Room for so many decisions."""
    what, row = np.empty((most, 3), np.int64), np.empty((most, windows.row.shape[0]), np.int64)
    return Decisions(what, np.empty(most, np.int64), np.empty(most, np.int64), row)


@kernel
def _draft_order(net: Net, jobs: NetActions, windows: TimeWindows, order: Integers) -> None:
    """The actions of every device by the middle of their windows, but none before what must come first."""
    key, total = np.empty(ONE_LIMB, np.int64), net.scalars[MICROBATCHES]
    for d in range(jobs.length.shape[0]):
        count, done, adjacent = jobs.length[d], int64(0), -1
        for x in range(count):
            job = jobs.own[d, x]
            key[x] = windows.start[job] + windows.end[job] - windows.time[job]
        for x in range(count):
            best = adjacent
            for y in range(count if adjacent < 0 else 0):
                if not done >> y & 1 and windows.prior[d, y] & ~done == 0 and (best < 0 or key[y] < key[best]):
                    best = y
            order[d, x], adjacent = best, -1
            done |= int64(1) << best
            n, kind, k = jobs.own[d, best] // total // 3, jobs.own[d, best] // total % 3, jobs.own[d, best] % total
            if kind == 1 and windows.pass_kind[n, k] == FUSED_PASS:
                adjacent = jobs.place[job_of(n, 2, k, total)]


@kernel
def _write_orders(net: Net, jobs: NetActions, windows: TimeWindows, draft: _Draft, may_fuse: bool) -> None:
    """The codes of a draft; `may_fuse`: a pass of which nothing is known is one where that would not be late."""
    total = net.scalars[MICROBATCHES]
    for d in range(jobs.length.shape[0]):
        size, skipped = 0, -1
        for x in range(jobs.length[d]):
            job = jobs.own[d, draft.order[d, x]]
            if job == skipped:
                continue
            n, kind, k = job // total // 3, job // total % 3, job % total
            is_one = kind == 1 and net.has_weight[n] == 1 and net.scalars[SPLIT] == 0
            rest = job_of(n, 2, k, total)
            if kind == 1 and jobs.fusible[n] and jobs.own[d, draft.order[d, x + 1]] == rest:
                is_one = windows.pass_kind[n, k] == FUSED_PASS
                if may_fuse and windows.pass_kind[n, k] == OPEN_PASS:
                    is_one = not is_late_as_one(jobs, windows, job, rest, draft.begin[job])
                if is_one:
                    skipped = rest
            draft.device_orders[d, size] = n * 4 + (3 if is_one else kind)
            size += 1
        draft.lengths[d] = size


@kernel
def time_of(net: Net, windows: TimeWindows, job: int, is_split: bool) -> int:
    """Ticks of an action; of a pass of which nothing is known, as two if `is_split`, else in the parts of one."""
    total = net.scalars[MICROBATCHES]
    n, kind, k = job // total // 3, job // total % 3, job % total
    if is_split and kind > 0 and windows.pass_kind[n, k] == OPEN_PASS:
        return net.duration[n, kind]
    return windows.time[job]


@kernel
def _run_draft(net: Net, jobs: NetActions, windows: TimeWindows, draft: _Draft, is_split: bool) -> tuple[int, int]:
    """(end, last action) of a draft on links that nobody shares; FAR if it waits for itself. Fills `begin`, `cause`."""
    total, size = net.scalars[MICROBATCHES], jobs.place.shape[0]
    missing, position = np.zeros(size, np.int64), np.zeros(jobs.length.shape[0], np.int64)
    for x in range(jobs.arcs.shape[0]):
        missing[jobs.arcs[x, AFTER]] += 1
    draft.begin[:], draft.cause[:] = 0, -1
    end, last, moved, left = int64(0), -1, True, jobs.length.sum()
    while moved:
        moved = False
        for d in range(jobs.length.shape[0]):
            while position[d] < jobs.length[d]:
                job = jobs.own[d, draft.order[d, position[d]]]
                if missing[job] > 0:
                    break
                moved, left = True, left - 1
                finish = draft.begin[job] + time_of(net, windows, job, is_split)
                if finish + net.synchronisation[net.replica_stage[job // total // 3]] > end:
                    end, last = finish + net.synchronisation[net.replica_stage[job // total // 3]], job
                for x in range(jobs.span[job, BEGIN], jobs.span[job, END]):
                    target = jobs.arcs[x, AFTER]
                    missing[target] -= 1
                    push(
                        draft,
                        job,
                        target,
                        finish + jobs.arcs[x, TICKS_BETWEEN] + jobs.arcs[x, AFTER_FUSED] * windows.late[job],
                    )
                position[d] += 1
                if position[d] < jobs.length[d]:
                    push(draft, job, jobs.own[d, draft.order[d, position[d]]], finish)
    return (end if left == 0 else int64(FAR)), last


@kernel
def push(draft: _Draft, job: int, target: int, moment: int) -> None:
    """Let `target` wait for `job` until `moment`."""
    if moment > draft.begin[target]:
        draft.begin[target], draft.cause[target] = moment, job


@kernel
def _open_pass(net: Net, jobs: NetActions, windows: TimeWindows, draft: _Draft, best: int, pair: Integers) -> bool:
    """Fill `pair` (-1, stage replica, microbatch) with a pass that alone may make the draft late; False if none."""
    total, last = net.scalars[MICROBATCHES], best - net.scalars[TAIL]
    if jobs.fusible.sum() == 0:
        return False
    if _run_draft(net, jobs, windows, draft, False)[0] >= last:
        return False
    end, job = _run_draft(net, jobs, windows, draft, True)
    while end >= last and end < FAR and job >= 0:
        n, kind, k = job // total // 3, job // total % 3, job % total
        if kind > 0 and windows.pass_kind[n, k] == OPEN_PASS:
            pair[0], pair[1], pair[2] = -1, n, k
            return True
        job = draft.cause[job]
    return False


@kernel
def tight_pass(net: Net, jobs: NetActions, windows: TimeWindows, pair: Integers) -> bool:
    """Fill `pair` with the open pass of least room on a device that has no time to split all of its open passes."""
    total, found, least = net.scalars[MICROBATCHES], False, int64(0)
    for d in range(jobs.length.shape[0]):
        begin, end, work, savings = int64(1) << 60, -(int64(1) << 60), int64(0), int64(0)
        for x in range(jobs.length[d]):
            job = jobs.own[d, x]
            begin, end = min(begin, windows.start[job]), max(end, windows.end[job])
            n, kind, k = job // total // 3, job // total % 3, job % total
            work += windows.time[job]
            if kind > 0 and windows.pass_kind[n, k] == OPEN_PASS:
                savings += net.duration[n, INPUT_GRAD if kind == 1 else WEIGHT_GRAD] - windows.time[job]
        if begin + work + savings <= end:
            continue
        for x in range(jobs.length[d]):
            job = jobs.own[d, x]
            n, kind, k = job // total // 3, job // total % 3, job % total
            if kind == 1 and windows.pass_kind[n, k] == OPEN_PASS:
                rest = job_of(n, 2, k, total)
                room = windows.end[rest] - windows.start[job] - windows.time[job] - windows.time[rest]
                if not found or room < least:
                    found, least, pair[0], pair[1], pair[2] = True, room, -1, n, k
    return found


@kernel
def any_pass(windows: TimeWindows, pair: Integers) -> bool:
    """Fill `pair` (-1, stage replica, microbatch) with a pass of which nothing is known; False if there is none."""
    for n in range(windows.pass_kind.shape[0]):
        for k in range(windows.pass_kind.shape[1]):
            if windows.pass_kind[n, k] == OPEN_PASS:
                pair[0], pair[1], pair[2] = -1, n, k
                return True
    return False


@kernel
def open_pair(net: Net, jobs: NetActions, windows: TimeWindows, pair: Integers) -> bool:
    """Fill `pair` (device, first, second) with the open pair that has the least room left; False if none is open.

    Room counts for less where the two have often been left without a window.
    """
    found, least, has_fusible = False, 0.0, jobs.fusible.sum() > 0
    for d in range(jobs.length.shape[0]):
        count = jobs.length[d]
        prior, after = windows.prior[d], windows.after[d]
        for x in range(count * num_limbs(prior)):
            a, w = x % count, x // count
            rest, i = unknown(prior, after, count, a, w), jobs.own[d, a]
            for b in range(max(a + 1, w << 6), min(count, (w + 1) << 6) if rest else 0):
                if rest >> (b & 63) & 1:
                    j = jobs.own[d, b]
                    both = windows.time[i] + windows.time[j]
                    one, two = windows.end[j] - windows.start[i] - both, windows.end[i] - windows.start[j] - both
                    score = (min(one, two) + 0.5 * max(one, two)) / (
                        1 + windows.weighted_degree[i] + windows.weighted_degree[j]
                    )
                    if (not found or score < least) and (not has_fusible or is_branched_on(net, jobs, windows, i, j)):
                        found, least, pair[0] = True, score, d
                        pair[1], pair[2] = (a, b) if one >= two else (b, a)
    return found


@kernel
def decide(net: Net, jobs: NetActions, windows: TimeWindows, what: Integers, is_one: int) -> bool:
    """Put a pair in order, or make a pass one or two; False if that contradicts what is known."""
    if what[0] >= 0:
        d = what[0]
        return put_before(windows.prior[d], windows.after[d], jobs.length[d], what[1], what[2])
    if is_one:
        fuse_pass(net, windows, what[1], what[2])
        return True
    return split_pass(net, jobs, windows, what[1], what[2])


@kernel
def go_down(
    net: Net, jobs: NetActions, windows: TimeWindows, decisions: Decisions, depth: int, best: int, pair: Integers
) -> bool:
    """Decide what `pair` says, the more likely way first; False if that contradicts what is known."""
    total = net.scalars[MICROBATCHES]
    decisions.windows[depth], decisions.what[depth], decisions.due[depth] = windows.row, pair, best
    decisions.is_one[depth] = 0
    if pair[0] < 0:
        job, rest = job_of(pair[1], 1, pair[2], total), job_of(pair[1], 2, pair[2], total)
        middle = (windows.start[job] + windows.end[job] - windows.time[job]) // 2
        decisions.is_one[depth] = not is_late_as_one(jobs, windows, job, rest, middle)
    return decide(net, jobs, windows, decisions.what[depth], decisions.is_one[depth])


@kernel
def take_back(windows: TimeWindows, decisions: Decisions, depth: int, best: int) -> None:
    """Make the windows what they were before a decision, but for what is better since then."""
    windows.row[:] = decisions.windows[depth]
    windows.end[:] -= decisions.due[depth] - best


@kernel
def go_back(net: Net, jobs: NetActions, windows: TimeWindows, decisions: Decisions, depth: int, best: int) -> bool:
    """Take the decision back and decide the other way; False if that contradicts what is known."""
    take_back(windows, decisions, depth, best)
    what = decisions.what[depth].copy()
    if what[0] >= 0:
        what[1], what[2] = what[2], what[1]
    return decide(net, jobs, windows, what, 1 - decisions.is_one[depth])


@kernel
def _play_draft(net: Net, jobs: NetActions, windows: TimeWindows, draft: _Draft, policy: Policy, best: int) -> int:
    """The best objective of orders made of the windows that fit into memory; at least `best` if none is better."""
    _draft_order(net, jobs, windows, draft.order)
    _write_orders(net, jobs, windows, draft, False)
    value = play(net, policy, draft.device_orders, draft.lengths, True, best, None)[0]
    if value < best and peak_excess(net, draft.device_orders, draft.lengths) == 0:
        return value
    if jobs.fusible.sum() > 0:
        _run_draft(net, jobs, windows, draft, True)
        _write_orders(net, jobs, windows, draft, True)
        value = play(net, policy, draft.device_orders, draft.lengths, True, best, None)[0]
        if value < best and peak_excess(net, draft.device_orders, draft.lengths) == 0:
            return value
    return best


@kernel
def _improve_drafts(
    net: Net, jobs: NetActions, windows: TimeWindows, draft: _Draft, best: int, incumbent: Incumbent, is_quick: bool
) -> tuple[int, bool]:
    """(best objective, whether any order below it is left): narrow, draft, and again below what the draft reaches.

    What is left after the last narrowing is always played, unless a pair is open and `is_quick`.
    """
    policy, pair = (
        Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), None),
        np.empty(3, np.int64),
    )
    while narrow(net, jobs, windows):
        if is_quick and open_pair(net, jobs, windows, pair):
            return best, True
        value = _play_draft(net, jobs, windows, draft, policy, best)
        if value >= best:
            return best, True
        windows.end[:] -= best - value
        best = value
        incumbent.device_orders[:], incumbent.lengths[:] = draft.device_orders, draft.lengths
    return best, False


@kernel
def best_sequence(
    net: Net, threshold: int, most_nodes: int, first_run: int, stop: Integers
) -> tuple[int, ShortIntegers, Integers, int, bool]:
    """(objective, device orders, lengths, nodes, is_complete): the best order below the threshold, if the search finds
    one.

    The objective is the threshold where none was found; there is none if the search is complete.
    """
    num_devices, nodes, depth, best = net.devices.shape[0], 0, 0, threshold
    device_orders, lengths = np.zeros((num_devices, longest_order(net)), np.int32), np.zeros(num_devices, np.int64)
    if overflow(net) > 0:
        return best, device_orders, lengths, nodes, True
    if longest_order(net) > ONE_LIMB or net.replica_stage.shape[0] > MAX_REPLICAS:
        return best, device_orders, lengths, nodes, False
    colocated = find_colocated(net)
    times, worst = settle_times(net, split_backward(net), colocated, most_in_flight(net, colocated), threshold)
    if worst + net.scalars[TAIL] >= threshold:
        return best, device_orders, lengths, nodes, True
    jobs = make_jobs(net, np.zeros(3 * net.replica_stage.shape[0], np.int64))
    windows, most = make_windows(net, jobs, times, threshold), min(MAX_DEPTH, most_nodes + 1)
    decisions, pair, size = make_decisions(windows, most), np.zeros(3, np.int64), windows.start.shape[0]
    draft = _Draft(
        np.zeros(jobs.own.shape, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64), device_orders.copy(),
        lengths.copy(),
    )  # fmt: skip
    incumbent, unasked = Incumbent(device_orders, lengths), np.zeros((0, 4), np.int64)
    alive, run, last, always_plays = True, first_run, first_run, jobs.fusible.sum() > 0
    while True:
        nodes += 1
        if nodes >= last and depth > 0:
            take_back(windows, decisions, 0, best)
            depth, alive, run = 0, True, run * RUN_GROWTH
            if run >= SHAVED_RUN * first_run:
                trials, _, alive = shave(net, jobs, windows, unasked, stop)
                nodes += trials
            last = nodes + run
        if alive:
            is_quick = not always_plays and nodes > first_run and nodes % PLAYED != 0
            best, alive = _improve_drafts(net, jobs, windows, draft, best, incumbent, is_quick)
        if alive and (
            (nodes > first_run and tight_pass(net, jobs, windows, pair))  # plans are found by their own orders
            or _open_pass(net, jobs, windows, draft, best, pair)
            or open_pair(net, jobs, windows, pair)
            or any_pass(windows, pair)
        ):
            if nodes >= most_nodes or depth == most or stop[0] != 0:
                return best, device_orders, lengths, nodes, False
            alive = go_down(net, jobs, windows, decisions, depth, best, pair)
            depth += 1
            continue
        if depth == 0:
            return best, device_orders, lengths, nodes, True
        depth -= 1
        alive = go_back(net, jobs, windows, decisions, depth, best)
