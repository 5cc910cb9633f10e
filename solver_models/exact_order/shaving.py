"""Windows narrowed by trial: what leaves no order when it is supposed does not hold; compiled.

Carlier and Pinson, and Martin and Shmoys, do so with job shops. It costs a narrowing per trial, and lasts for the whole
search below: worth its price at the root of a long one.
"""

from solver_models.compiled import kernel
from solver_models.exact_order.action_sets import is_known, put_before
from solver_models.exact_order.propagation import (
    OPEN_PASS,
    NetActions,
    TimeWindows,
    is_branched_on,
    narrow,
    windows_of,
)
from solver_models.instance import Integers
from solver_models.simulation.evaluator import MICROBATCHES, Net

STARTS_EARLY, ENDS_LATE, COMES_FIRST = 0, 1, 2
"""What is supposed of an action: it starts in the first part of its room, ends in the last, or comes before another."""

SHARE = 8
"""Parts of the room of an action."""

_MOST_TRIALS = 20_000
"""Of one call: with hundreds of actions per device there are many more, which take longer than they bring."""


@kernel
def is_open(net: Net, jobs: NetActions, windows: TimeWindows, what: int, d: int, a: int, b: int) -> bool:
    """Whether a supposition on action a of a device (and b) would tell something.

    An action whose ticks are open is left alone: that it does not end by a time would not say when it starts.
    """
    total, job = net.scalars[MICROBATCHES], jobs.own[d, a]
    if what == COMES_FIRST:
        return (
            a != b
            and not is_known(windows.prior, windows.after, d, a, b)
            and is_branched_on(net, jobs, windows, job, jobs.own[d, b])
        )
    n, kind, k = job // total // 3, job // total % 3, job % total
    return windows.start[job] + windows.time[job] < windows.end[job] and (
        kind == 0 or windows.pass_kind[n, k] != OPEN_PASS
    )


@kernel
def suppose(jobs: NetActions, windows: TimeWindows, what: int, d: int, a: int, b: int, holds: bool) -> bool:
    """Let a supposition hold, or not; False if that contradicts what is known."""
    if what == COMES_FIRST:
        one, two = (a, b) if holds else (b, a)
        return put_before(windows.prior[d], windows.after[d], jobs.length[d], one, two)
    job = jobs.own[d, a]
    start, end, time = windows.start[job], windows.end[job], windows.time[job]
    part = (end - start - time) // SHARE
    if holds == (what == STARTS_EARLY):
        windows.end[job] = start + time + part if holds else end - part - 1
    else:
        windows.start[job] = end - time - part if holds else start + part + 1
    return True


@kernel
def shave(net: Net, jobs: NetActions, windows: TimeWindows, refuted: Integers, stop: Integers) -> tuple[int, int, bool]:
    """(trials, suppositions refuted, whether any order is left): all of them on all actions, each until it may hold.

    `refuted`: [R, 4] is filled with what was supposed, device and actions as in `suppose`, and full it ends; with no
    rows nobody asks. `stop`: [1] another thread sets it.
    """
    trials, count, room = 0, 0, refuted.shape[0]
    spare = windows_of(jobs, windows.row.copy(), windows.weighted_degree)
    for what in range(3):
        for d in range(jobs.length.shape[0]):
            length = jobs.length[d]
            for x in range(length * length if what == COMES_FIRST else length):
                a, b = x % length, x // length
                while is_open(net, jobs, windows, what, d, a, b) and (room == 0 or count < room) and stop[0] == 0:
                    if trials >= _MOST_TRIALS:
                        return trials, count, True
                    spare.row[:] = windows.row
                    trials += 1
                    if suppose(jobs, spare, what, d, a, b, True) and narrow(net, jobs, spare):
                        break
                    if room > 0:
                        row = refuted[count]
                        row[0], row[1], row[2], row[3] = what, d, a, b
                    count += 1
                    if not suppose(jobs, windows, what, d, a, b, False) or not narrow(net, jobs, windows):
                        return trials, count, False
    return trials, count, True
