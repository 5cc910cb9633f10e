"""Whole microbatches exchanged between pipelines that run 1F1B, compiled: annealing until the slowest ends early."""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Integers
from solver_models.moves.annealing import Cooling, temperature

FIRST, SECOND = 0, 1
"""Whose assignments a trial changes: rows of what is tried."""


class BalancedTimes(NamedTuple):
    """What M microbatches take on S stages, and how dear it is to be slow."""

    forward: Integers
    """[M, S]."""
    backward: Integers
    """[M, S]."""
    transfer: int
    """From a stage to the next."""
    steepness: int
    """A pipeline costs exp(steepness x (time / mean time - 1)), so that the slowest count."""


class Assignments(NamedTuple):
    """Microbatches per pipeline, in order."""

    held: Integers
    """[P, M] microbatches."""
    counts: Integers
    """[P] how many of a row count."""


@kernel
def _play_assignment(times: BalancedTimes, assignment: Integers, count: int) -> int:
    """When a pipeline with the first `count` microbatches of `assignment` ends.

    In every turn the forwards of one microbatch, and then on every stage the backward that is due there.
    """
    last = times.forward.shape[1] - 1
    free, returned = np.zeros(last + 1, np.int64), np.zeros(last + 2, np.int64)
    if count == 0:
        return 0
    for slot in range(count + last):
        if slot < count:
            ready = 0
            for stage in range(last + 1):
                free[stage] = max(free[stage], ready) + times.forward[assignment[slot], stage]
                ready = free[stage] + times.transfer
        for stage in range(last + 1):
            place = slot - last + stage
            if 0 <= place < count:
                free[stage] = max(free[stage], returned[stage + 1]) + times.backward[assignment[place], stage]
                returned[stage] = free[stage] + times.transfer
    return int(np.max(free))


@kernel
def exchange(assignments: Assignments, one: int, two: int, tried: Integers, lengths: Integers) -> None:
    """Let two pipelines exchange up to two in a row at places drawn; `tried` and `lengths` get their assignments."""
    mine, theirs = assignments.counts[one], assignments.counts[two]
    here, there = np.random.randint(0, mine), np.random.randint(0, theirs + 1)
    given, got = min(np.random.randint(0, 3), mine - here), min(np.random.randint(0, 3), theirs - there)
    for row, own, other, at, leave, other_at, take in (
        (FIRST, one, two, here, given, there, got),
        (SECOND, two, one, there, got, here, given),
    ):
        count = assignments.counts[own]
        tried[row, :at] = assignments.held[own, :at]
        tried[row, at : at + take] = assignments.held[other, other_at : other_at + take]
        tried[row, at + take : count - leave + take] = assignments.held[own, at + leave : count]
        lengths[row] = count - leave + take


@kernel
def reorder(assignments: Assignments, one: int, tried: Integers, lengths: Integers) -> None:
    """Put one microbatch of a pipeline elsewhere in its order, or turn a part of the order round."""
    count = assignments.counts[one]
    lengths[FIRST] = count
    tried[FIRST, :count] = assignments.held[one, :count]
    source, target = np.random.randint(0, count), np.random.randint(0, count)
    low, high = min(source, target), max(source, target)
    turned = np.random.random() < 0.3
    for place in range(low, high + 1):
        if turned:
            tried[FIRST, place] = assignments.held[one, low + high - place]
        elif source < target:
            tried[FIRST, place] = assignments.held[one, place + 1 if place < high else low]
        else:
            tried[FIRST, place] = assignments.held[one, place - 1 if place > low else high]


@kernel
def price(times: BalancedTimes, part: float) -> float:
    """Of a pipeline that takes so many times the mean."""
    return float(np.exp(min(times.steepness * (part - 1), 600.0)))


@kernel
def anneal_assignments(times: BalancedTimes, assignments: Assignments, cooling: Cooling) -> int:
    """Leave the best in `assignments`; returns when its slowest pipeline ends. No assignment is empty at first."""
    np.random.seed(cooling.seed)
    pipelines, size = assignments.held.shape
    tried, lengths = np.zeros((2, size), np.int64), np.zeros(2, np.int64)
    ends = np.zeros(pipelines, np.int64)
    for one in range(pipelines):
        ends[one] = _play_assignment(times, assignments.held[one], assignments.counts[one])
    mean, least = max(1.0, np.sum(ends) / pipelines), np.max(ends)
    held, counts = assignments.held.copy(), assignments.counts.copy()
    found = np.zeros(2, np.int64)
    for step in range(cooling.steps):
        one = int(np.argmax(ends)) if np.random.random() < 0.5 else np.random.randint(0, pipelines)
        if assignments.counts[one] == 0:
            continue
        two = one
        if pipelines == 1 or np.random.random() < 0.3:
            reorder(assignments, one, tried, lengths)
        else:
            two = (one + np.random.randint(1, pipelines)) % pipelines
            exchange(assignments, one, two, tried, lengths)
        more = 0.0
        for row, own in ((FIRST, one), (SECOND, two)):
            if row == FIRST or two != one:
                found[row] = _play_assignment(times, tried[row], lengths[row])
                more += price(times, found[row] / mean) - price(times, ends[own] / mean)
        if more <= 0 or np.random.random() < np.exp(-more / pipelines / temperature(cooling, step)):
            for row, own in ((FIRST, one), (SECOND, two)):
                if row == FIRST or two != one:
                    assignments.held[own, : lengths[row]] = tried[row, : lengths[row]]
                    assignments.counts[own], ends[own] = lengths[row], found[row]
            if found[FIRST] < least and np.max(ends) < least:
                least = np.max(ends)
                held[:, :], counts[:] = assignments.held, assignments.counts
    assignments.held[:, :], assignments.counts[:] = held, counts
    return int(least)
