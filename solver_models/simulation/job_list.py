"""List scheduling of jobs that wait for one another: whichever can start first starts, of several the first in rank.

What cannot be told by microbatches in order (`list_schedule`) is: jobs of different length, parts of stages, actions as
they ran. A device's jobs need room as well. What is sent has its links to itself, or goes through a channel one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, interpreting, kernel
from solver_models.instance import Integers

NOBODY = -1
"""No job, or no channel."""

_RANKS = np.array([1, 0, 2, 0])
"""Of kinds of action."""


class JobTable(NamedTuple):
    """A jobs on D devices, and E edges from them to jobs that wait for them, by the job that is waited for."""

    device: Integers
    """[A] who runs it."""
    ticks: Integers
    """[A] how long."""
    gap: Integers
    """[A] ticks that the device takes before it."""
    rank: Integers
    """[A] of those that can start at once the least goes first; no two are equal."""
    during: Integers
    """[A] units that it needs while it runs."""
    after: Integers
    """[A] units that it leaves behind, or gives back, negative."""
    budget: Integers
    """[D] units."""
    first: Integers
    """[A + 1] where the edges of a job begin."""
    follower: Integers
    """[E] who waits."""
    lag: Integers
    """[E] ticks from the end of the one until the other may start."""
    channel: Integers
    """[E] number below E of what the lag occupies, or `NOBODY`."""


def make_jobs(
    columns: Mapping[str, Sequence[int]], *, budget: Sequence[int], edges: Sequence[tuple[int, int, int, int]]
) -> JobTable:
    """The table of jobs from its columns, nothing where one is left out; `edges`: job, follower, lag, channel."""
    size, table = len(columns["device"]), np.array(sorted(edges), np.int64).reshape(-1, 4).T.copy()
    filled = {name: np.array(columns.get(name, [0] * size), np.int64) for name in JobTable._fields[:6]}
    first = np.searchsorted(table[0], np.arange(size + 1))
    return JobTable(
        **filled, budget=np.array(budget, np.int64), first=first, follower=table[1], lag=table[2], channel=table[3]
    )


def list_jobs(jobs: JobTable) -> tuple[Integers, int]:
    """The jobs in the order in which they start, as far as there is room for them, and the last end."""
    with interpreting(len(jobs.device)):
        order, end = _list_jobs(jobs)
    return order, int(end)


@kernel
def _list_jobs(jobs: JobTable) -> tuple[Integers, int]:
    size, devices = jobs.device.shape[0], jobs.budget.shape[0]
    free, held, begin = np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    chosen, is_new = np.full(devices, NOBODY), np.ones(devices, np.bool_)
    sent = np.zeros(jobs.channel.shape[0], np.int64)
    missing, ready, older = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, NOBODY)
    newest, order, count = np.full(devices, NOBODY), np.empty(size, np.int64), 0
    for follower in jobs.follower:
        missing[follower] += 1
    for job in range(size):
        if missing[job] == 0:
            older[job], newest[jobs.device[job]] = newest[jobs.device[job]], job
    while True:
        best = NOBODY
        for d in range(devices):
            if is_new[d]:
                chosen[d], is_new[d], job = NOBODY, False, newest[d]
                while job >= 0:
                    if held[d] + max(jobs.during[job], jobs.after[job]) <= jobs.budget[d]:
                        start, rank = max(free[d] + jobs.gap[job], ready[job]), jobs.rank[job]
                        if chosen[d] < 0 or (start, rank) < (begin[d], jobs.rank[chosen[d]]):
                            chosen[d], begin[d] = job, start
                    job = older[job]
            if chosen[d] >= 0 and (
                best < 0 or (begin[d], jobs.rank[chosen[d]]) < (begin[best], jobs.rank[chosen[best]])
            ):
                best = d
        if best < 0:
            return order[:count], int64(np.max(free))
        job = order[count] = chosen[best]
        count += 1
        if newest[best] == job:
            newest[best] = older[job]
        else:
            newer = newest[best]
            while older[newer] != job:
                newer = older[newer]
            older[newer] = older[job]
        free[best], is_new[best] = begin[best] + jobs.ticks[job], True
        held[best] += jobs.after[job]
        for edge in range(jobs.first[job], jobs.first[job + 1]):
            follower, channel, arrival = jobs.follower[edge], jobs.channel[edge], free[best]
            if channel >= 0:
                arrival = max(arrival, sent[channel])
                sent[channel] = arrival + jobs.lag[edge]
            ready[follower] = max(ready[follower], arrival + jobs.lag[edge])
            missing[follower] -= 1
            if missing[follower] == 0:
                d = jobs.device[follower]
                older[follower], newest[d], is_new[d] = newest[d], follower, True


class StageJobs(NamedTuple):
    """What S stages run of M microbatches, each kind in order, with at most `caps` of a stage between F and I."""

    stage: Integers
    """[A] stage of every job."""
    kind: Integers
    """[A] its kind."""
    microbatch: Integers
    """[A] its microbatch."""
    first: Integers
    """[A + 1] as in `JobTable`."""
    follower: Integers
    """[E] as in `JobTable`."""
    transfer: Integers
    """[E] which of the transfers the edge is, or `NOBODY`."""
    sent: Integers
    """[E] microbatch of the job that is waited for."""

    def table(self, device: Integers, *, ticks: Integers, steps: Integers, lag: Integers, budget: Integers) -> JobTable:
        """Backwards go before F before W, and of these the deepest stage.

        `device` [S], `ticks` [A], `steps` [A, 2] units during a job and after it, `lag` [E].
        """
        rank = (_RANKS[self.kind] + 1) * len(device) - self.stage
        nothing, nobody = np.zeros_like(self.stage), np.full_like(self.follower, NOBODY)
        during, after = steps.T.copy()
        return JobTable(
            device[self.stage], ticks, nothing, rank, during, after, budget, self.first, self.follower, lag, nobody
        )


def stage_jobs(
    kinds: Sequence[Sequence[int]], transfers: Sequence[tuple[int, int, bool]], *, caps: Sequence[int], count: int
) -> StageJobs:
    """The jobs of stages that run F, I or B, and where they have it W; `transfers`: sender, receiver, is a gradient."""
    begins = np.cumsum([0, *(count * len(own) for own in kinds)])
    edges = [(begins[a] + back * count, begins[b] + back * count, 0, e) for e, (a, b, back) in enumerate(transfers)]
    for begin, own, cap in zip(begins.tolist(), kinds, caps, strict=False):
        rows = range(begin, begin + count * len(own), count)
        edges += [(row, row, 1, NOBODY) for row in rows]
        edges += [(row, row + count, 0, NOBODY) for row in rows[:-1]]
        edges.append((begin + count, begin, cap, NOBODY))
    source, follower, transfer = (np.concatenate(column) for column in zip(*_spread(edges, count), strict=True))
    order = np.argsort(source, kind="stable")
    numbers = np.arange(begins[-1])
    flat = np.array([(stage, kind) for stage, own in enumerate(kinds) for kind in own], np.int64)
    return StageJobs(
        stage=flat[numbers // count, 0],
        kind=flat[numbers // count, 1],
        microbatch=numbers % count,
        first=np.searchsorted(source[order], np.arange(begins[-1] + 1)),
        follower=follower[order],
        transfer=transfer[order],
        sent=source[order] % count,
    )


def _spread(edges: Sequence[tuple[int, int, int, int]], count: int) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Of every edge between rows of jobs, from a microbatch to one `shift` behind: source, follower and transfer."""
    for source, follower, shift, transfer in edges:
        numbers = np.arange(max(count - shift, 0))
        yield source + numbers, follower + shift + numbers, np.full(len(numbers), transfer)
