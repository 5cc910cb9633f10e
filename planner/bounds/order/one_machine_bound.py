"""The one-machine bound: jobs with heads and tails on one resource, preemption allowed (Jackson's rule, exact)."""

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy

from planner.bounds.minimum_costs import Integers

MAX_JOBS = 60_000
"""Larger sets of jobs are bounded by least head + work + least tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMachineJobs:
    """Jobs of one resource."""

    heads: Integers
    """No job starts before its head."""
    times: Integers
    """Processing times."""
    tails: Integers
    """After the end of a job, so much must follow."""


def join(parts: list[OneMachineJobs]) -> OneMachineJobs:
    """All jobs of the parts that take time."""
    heads, times, tails = (
        numpy.concatenate([getattr(part, field) for part in parts]) for field in ("heads", "times", "tails")
    )
    busy = times > 0
    return OneMachineJobs(heads=heads[busy], times=times[busy], tails=tails[busy])


def one_machine(jobs: OneMachineJobs) -> int:
    """No schedule of the jobs on one resource ends earlier, tails included; 0 without jobs.

    Proof. Preemption only helps. Among preemptive schedules, always running a released job with the largest tail is
    best: swapping two pieces of jobs so that the one with the larger tail comes first delays no end beyond the other's.
    """
    if not len(jobs.times):
        return 0
    if len(jobs.times) > MAX_JOBS:
        return int(jobs.heads.min() + jobs.times.sum() + jobs.tails.min())
    order = numpy.argsort(jobs.heads, kind="stable")
    heads, times, tails = (values[order].tolist() for values in (jobs.heads, jobs.times, jobs.tails))
    return _play(heads, times, tails=tails)


def _play(heads: list[int], times: list[int], *, tails: list[int]) -> int:
    """Jackson's rule on jobs sorted by head: the largest (end + tail)."""
    waiting: list[tuple[int, int]] = []
    now, result, count, number = 0, 0, len(heads), 0
    while waiting or number < count:
        if not waiting:
            now = heads[number]
        while number < count and heads[number] <= now:
            heappush(waiting, (-tails[number], times[number]))
            number += 1
        tail, time = waiting[0]
        if number < count and now + time > heads[number]:
            heapreplace(waiting, (tail, time - heads[number] + now))
            now = heads[number]
        else:
            heappop(waiting)
            now += time
            result = max(result, now - tail)
    return result
