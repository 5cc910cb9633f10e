"""Windows narrowed by trial: what leaves no order when it is supposed does not hold; compiled.

Carlier and Pinson, and Martin and Shmoys, do so with job shops. It costs a narrowing per trial, and lasts for the whole
search below: worth its price at the root of a long one.
"""

from solver_models.compiled import kernel
from solver_models.joint.windows import OPEN_PASS, Windows, is_branched_on, narrow, put_before
from solver_models.kernels import MICROBATCHES

SHARE = 8
"""A trial supposes that an action starts in the first, or ends in the last, of so many parts of its room."""


@kernel
def copy_of(windows):
    """The same windows in arrays of their own, but whom to blame in the same."""
    return Windows(
        windows.start.copy(), windows.end.copy(), windows.time.copy(), windows.late.copy(), windows.way.copy(),
        windows.prior.copy(), windows.after.copy(), windows.seen.copy(), windows.blame,
    )  # fmt: skip


@kernel
def copy_into(spare, windows):
    """Make `spare` the same as `windows`."""
    spare.start[:], spare.end[:], spare.time[:], spare.late[:] = windows.start, windows.end, windows.time, windows.late
    spare.prior[:], spare.after[:] = windows.prior, windows.after
    spare.way[:], spare.seen[:] = windows.way, windows.seen


@kernel
def shave_end(net, jobs, windows, spare, job, side):
    """(trials, whether any order is left): cut parts off one end of the window of an action; `side` 1: the late end."""
    trials = 0
    while True:
        room = windows.end[job] - windows.start[job] - windows.time[job]
        if room <= 0:
            return trials, True
        part = room // SHARE
        copy_into(spare, windows)
        if side == 0:
            spare.end[job] = windows.start[job] + windows.time[job] + part
        else:
            spare.start[job] = windows.end[job] - windows.time[job] - part
        trials += 1
        if narrow(net, jobs, spare):
            return trials, True
        if side == 0:
            windows.start[job] += part + 1
        else:
            windows.end[job] -= part + 1
        if not narrow(net, jobs, windows):
            return trials, False


@kernel
def shave_pairs(net, jobs, windows, spare, d, a):
    """(trials, whether any order is left): suppose that an action comes before, or after, each one it may."""
    trials, prior, after = 0, windows.prior[d], windows.after[d]
    for b in range(a + 1, jobs.length[d]):
        for side in range(2):
            if (prior[a] | after[a]) >> b & 1 or not is_branched_on(net, jobs, windows, jobs.own[d, a], jobs.own[d, b]):
                break
            one, two = (a, b) if side == 0 else (b, a)
            copy_into(spare, windows)
            trials += 1
            holds = put_before(spare.prior[d], spare.after[d], jobs.length[d], one, two)
            if holds and narrow(net, jobs, spare):
                continue
            if not put_before(prior, after, jobs.length[d], two, one) or not narrow(net, jobs, windows):
                return trials, False
    return trials, True


@kernel
def shave(net, jobs, windows):
    """(trials, whether any order is left): all windows at both ends, then all open pairs, once.

    An action whose ticks are open is left alone: that it does not end by a time would not say when it starts.
    """
    total, trials, spare = net.scalars[MICROBATCHES], 0, copy_of(windows)
    for d in range(jobs.length.shape[0]):
        for x in range(jobs.length[d]):
            job = jobs.own[d, x]
            n, kind, k = job // total // 3, job // total % 3, job % total
            for side in range(2 if kind == 0 or windows.way[n, k] != OPEN_PASS else 0):
                more, is_left = shave_end(net, jobs, windows, spare, job, side)
                trials += more
                if not is_left:
                    return trials, False
    for d in range(jobs.length.shape[0]):
        for a in range(jobs.length[d]):
            more, is_left = shave_pairs(net, jobs, windows, spare, d, a)
            trials += more
            if not is_left:
                return trials, False
    return trials, True
