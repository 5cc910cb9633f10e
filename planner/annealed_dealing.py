"""A dealing made better by annealing: for questions that are asked once, not for every step of a job."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

Assignments = Sequence[Sequence[int]]
"""By pipeline its microbatches, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingParams:
    """Steps and temperatures of the annealing."""

    plays: int = 240_000
    """Pipelines played. Not measured; `planner.planning` says how many."""
    steepness: float = 60.0
    """A pipeline costs exp(steepness x time / mean time), so that the slowest count. Not measured."""
    hottest: float = 1.0
    """Cost that is given up as likely as not at the start. Measured on 1F1B: 0.2 is as good."""
    coldest: float = 0.0005
    """The same at the end. Not measured."""
    seed: int = 0
    """Of the random numbers."""


def anneal(
    assignments: Assignments, *, play: Callable[[Sequence[int]], int], params: AnnealingParams
) -> list[list[int]]:
    """Assignments whose slowest pipeline ends no later than that of `assignments`; `play` says when a pipeline ends."""
    now = [list(assignment) for assignment in assignments]
    times = [play(assignment) for assignment in now]
    mean = sum(times) / max(len(times), 1)
    best, least = [list(assignment) for assignment in now], max(times, default=0)
    if not mean or (len(now) < 2 and max(map(len, now)) < 2):
        return best
    rng, plays = random.Random(params.seed), 0
    while plays < params.plays:
        temperature = params.hottest * (params.coldest / params.hottest) ** (plays / params.plays)
        other = _neighbour(now, times, rng=rng)
        played = {pipeline: play(assignment) for pipeline, assignment in other.items()}
        plays += max(1, len(played))
        more = sum(
            _price(time / mean, params.steepness) - _price(times[pipeline] / mean, params.steepness)
            for pipeline, time in played.items()
        ) / len(now)
        if more <= 0 or rng.random() < exp(-more / temperature):
            for pipeline, time in played.items():
                now[pipeline], times[pipeline] = other[pipeline], time
            if max(times) < least:
                best, least = [list(assignment) for assignment in now], max(times)
    return best


def _price(part: float, steepness: float) -> float:
    """Of a pipeline that takes so many times the mean; of one that never ends, more than any other's."""
    return exp(min(steepness * (part - 1), 600.0))


def _neighbour(assignments: Assignments, times: Sequence[int], *, rng: random.Random) -> dict[int, list[int]]:
    """One assignment in another order, or two that have exchanged up to two in a row; half the time of the slowest."""
    count = len(assignments)
    one = max(range(count), key=times.__getitem__) if rng.random() < 0.5 else rng.randrange(count)
    mine = list(assignments[one])
    if not mine:
        return {}
    place = rng.randrange(len(mine))
    if rng.random() < 0.3 or count == 1:
        mine.insert(rng.randrange(len(mine)), mine.pop(place))
        return {one: mine}
    two = (one + rng.randrange(1, count)) % count
    theirs = list(assignments[two])
    other = rng.randrange(len(theirs) + 1)
    here, there = (slice(at, at + rng.randrange(3)) for at in (place, other))
    mine[here], theirs[there] = theirs[there], mine[here]
    return {one: mine, two: theirs}
