"""Microbatches of different length, dealt whole to the pipelines of a data-parallel job so that the slowest ends early.

Every pipeline runs 1F1B over the same stages. Longest first onto the least loaded pipeline is the start; then moves,
swaps and other orders within the slowest pipeline are played, and only what makes it faster is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil, floor

from planner.annealed_dealing import AnnealingParams, anneal
from planner.bounds.dealt_microbatches import bound_1f1b, bound_any_order

MAX_TRIALS = 2_400
"""Pipelines played at most; a count and not a clock, so that every process that deals finds the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What a stage was measured to take, by the length of a microbatch."""

    lengths: tuple[int, ...]
    """In tokens or samples, ascending."""
    forward_ns: tuple[int, ...]
    """At each length."""
    backward_ns: tuple[int, ...]
    """At each length."""

    def __post_init__(self) -> None:
        counts = {len(self.lengths), len(self.forward_ns), len(self.backward_ns)}
        if counts == {0} or len(counts) != 1:
            raise ValueError(f"stage times: {sorted(counts)} lengths and times; give one of each per measured length")
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"stage times: lengths {self.lengths} do not ascend; sort them and measure each once")
        if min(*self.forward_ns, *self.backward_ns, 0) < 0:
            raise ValueError("stage times: a time is negative; measure again")

    def at(self, length: int) -> tuple[Fraction, Fraction]:
        """Forward and backward, interpolated between the neighbours; ValueError outside what was measured."""
        if not self.lengths[0] <= length <= self.lengths[-1]:
            raise ValueError(
                f"length = {length}: measured were {self.lengths[0]} to {self.lengths[-1]}; measure a stage there too"
            )
        right = next(place for place, known in enumerate(self.lengths) if known >= length)
        left = max(0, right - 1)
        width = self.lengths[right] - self.lengths[left]
        part = Fraction(length - self.lengths[left], width) if width else Fraction(0)
        forward, backward = (row[left] + part * (row[right] - row[left]) for row in (self.forward_ns, self.backward_ns))
        return forward, backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """One microbatch."""

    forward_ns: tuple[int, ...]
    """Per stage."""
    backward_ns: tuple[int, ...]
    """Per stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Which pipeline takes which microbatches."""

    pipelines: tuple[tuple[int, ...], ...]
    """Per pipeline its microbatches, by their place in what was given, in the order in which to run them."""
    largest_ns: int
    """When the slowest pipeline ends."""
    longest_first_ns: int
    """The same for longest first, which this is never worse than."""
    lower_bound_ns: int
    """No dealing of whole microbatches to as many pipelines ends before, under 1F1B or any order of their actions."""

    @property
    def gap(self) -> float:
        """(largest - lower bound) / largest."""
        return (self.largest_ns - self.lower_bound_ns) / self.largest_ns if self.largest_ns else 0.0


def deal(lengths: Sequence[int], pipelines: int, *, stages: Sequence[StageTimes], transfer_ns: int = 0) -> Dealing:
    """Deal microbatches by their lengths; ValueError where a length lies outside what was measured of a stage."""
    if not stages:
        raise ValueError("stages is empty; give the times of at least one stage")
    exact = {length: [stage.at(length) for stage in stages] for length in set(lengths)}
    up, down = (
        {
            length: Durations(
                forward_ns=tuple(to_int(forward) for forward, _ in row),
                backward_ns=tuple(to_int(backward) for _, backward in row),
            )
            for length, row in exact.items()
        }
        for to_int in (ceil, floor)
    )
    return deal_durations(
        [up[length] for length in lengths],
        pipelines,
        transfer_ns=transfer_ns,
        at_least=[down[length] for length in lengths],
    )


def deal_durations(
    microbatches: Sequence[Durations],
    pipelines: int,
    *,
    transfer_ns: int = 0,
    at_least: Sequence[Durations] | None = None,
    annealing: AnnealingParams | None = None,
) -> Dealing:
    """Deal microbatches whose times per stage are known; `at_least`: the same rounded down, for the bound.

    `annealing`: take seconds instead of milliseconds, for a question that is asked once.
    """
    if pipelines < 1:
        raise ValueError(f"pipelines = {pipelines}; give at least one")
    counts = {len(times) for each in microbatches for times in (each.forward_ns, each.backward_ns)}
    if len(counts) > 1 or counts == {0}:
        raise ValueError(f"microbatches have times of {sorted(counts)} stages; give one forward and backward per stage")
    table = _Table(microbatches, pipelines, transfer_ns=transfer_ns)
    start = max(table.times, default=0)
    table.improve()
    if annealing is not None:
        table.replace(anneal(table.hands, play=table.play, params=annealing))
    return Dealing(
        pipelines=tuple(tuple(hand) for hand in table.hands),
        largest_ns=max(table.times, default=0),
        longest_first_ns=start,
        lower_bound_ns=bound_dealings(at_least or microbatches, pipelines, transfer_ns=transfer_ns),
    )


def bound_dealings(
    microbatches: Sequence[Durations], pipelines: int, *, transfer_ns: int = 0, is_1f1b: bool = False
) -> int:
    """No dealing ends before: in whatever order the pipelines run, or only if they run 1F1B (`is_1f1b`)."""
    bound = bound_1f1b if is_1f1b else bound_any_order
    forward, backward = ([getattr(each, name) for each in microbatches] for name in ("forward_ns", "backward_ns"))
    return bound(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns)


@cache
def pipeline_actions(stages: int, count: int) -> tuple[tuple[int, int, bool], ...]:
    """1F1B's actions (stage, place, is forward), each after those that it waits for."""
    rows = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, count)
        row = [(stage, place, True) for place in range(warm)]
        for place in range(count - warm):
            row += [(stage, warm + place, True), (stage, place, False)]
        rows.append(row + [(stage, place, False) for place in range(count - warm, count)])
    done: dict[tuple[int, int, bool], None] = {}
    places = [0] * stages
    while len(done) < 2 * stages * count:
        for stage, row in enumerate(rows):
            while places[stage] < len(row):
                _, place, is_forward = row[places[stage]]
                source = (stage - 1, place, True) if is_forward else (stage + 1, place, False)
                if 0 <= source[0] < stages and source not in done:
                    break
                done[row[places[stage]]] = None
                places[stage] += 1
    return tuple(done)


class _Table:
    """Who holds what, and when each pipeline ends."""

    def __init__(self, microbatches: Sequence[Durations], pipelines: int, *, transfer_ns: int) -> None:
        """Longest first onto the least loaded, by the stage where all have most to do."""
        self.forward = [each.forward_ns for each in microbatches]
        self.backward = [each.backward_ns for each in microbatches]
        self.num_stages = len(self.forward[0]) if microbatches else 0
        self.transfer_ns = transfer_ns
        loads = [[f + b for f, b in zip(*both, strict=True)] for both in zip(self.forward, self.backward, strict=True)]
        busiest = max(range(self.num_stages), key=lambda stage: sum(row[stage] for row in loads), default=0)
        self.load = [row[busiest] for row in loads]
        self.hands: list[list[int]] = [[] for _ in range(pipelines)]
        sums = [0] * pipelines
        for number in sorted(range(len(loads)), key=lambda number: -self.load[number]):
            least = min(range(pipelines), key=lambda pipeline: sums[pipeline])
            self.hands[least].append(number)
            sums[least] += self.load[number]
        self.trials = 0
        self.times = [self.play(hand) for hand in self.hands]

    def play(self, hand: Sequence[int]) -> int:
        """When a pipeline with these microbatches, in this order, ends."""
        self.trials += 1
        free = [0] * self.num_stages
        arrived = [[0] * len(hand) for _ in range(self.num_stages)]
        returned = [[0] * len(hand) for _ in range(self.num_stages)]
        for stage, place, is_forward in pipeline_actions(self.num_stages, len(hand)):
            ready = (arrived if is_forward else returned)[stage][place]
            times = (self.forward if is_forward else self.backward)[hand[place]]
            free[stage] = end = max(free[stage], ready) + times[stage]
            if is_forward and stage + 1 < self.num_stages:
                arrived[stage + 1][place] = end + self.transfer_ns
            elif not is_forward and stage:
                returned[stage - 1][place] = end + self.transfer_ns
        return max(free, default=0)

    def replace(self, hands: list[list[int]]) -> None:
        """Deal anew."""
        self.hands = hands
        self.times = [self.play(hand) for hand in hands]

    def improve(self) -> None:
        """Make the slowest pipeline faster as long as that is found."""
        while self.trials < MAX_TRIALS:
            worst = max(range(len(self.times)), key=lambda pipeline: self.times[pipeline])
            if not (self.reorder(worst) or self.exchange(worst)):
                return

    def reorder(self, worst: int) -> bool:
        """Another order of the same microbatches."""
        hand, best = self.hands[worst], self.times[worst]
        for taken in range(len(hand)):
            rest = hand[:taken] + hand[taken + 1 :]
            for place in range(len(hand)):
                if self.trials >= MAX_TRIALS:
                    return False
                other = [*rest[:place], hand[taken], *rest[place:]]
                if place != taken and (time := self.play(other)) < best:
                    self.hands[worst], self.times[worst] = other, time
                    return True
        return False

    def exchange(self, worst: int) -> bool:
        """Give a microbatch away, or for a shorter one; pipelines with most room first."""
        hand, before = self.hands[worst], self.times[worst]
        for other in sorted(range(len(self.times)), key=lambda pipeline: self.times[pipeline]):
            room = before - self.times[other]
            if other == worst or room <= 0:
                continue
            pairs = [(self.load[mine], i, None) for i, mine in enumerate(hand)] + [
                (self.load[mine] - self.load[theirs], i, j)
                for i, mine in enumerate(hand)
                for j, theirs in enumerate(self.hands[other])
            ]
            fitting = sorted(
                (abs(2 * load - room), i, -1 if j is None else j) for load, i, j in pairs if 0 < load < room
            )
            for _, i, j in fitting[:4]:
                if self.trials >= MAX_TRIALS:
                    return False
                given = hand[:i] + ([] if j < 0 else [self.hands[other][j]]) + hand[i + 1 :]
                theirs = self.hands[other]
                got = [*theirs, hand[i]] if j < 0 else [*theirs[:j], hand[i], *theirs[j + 1 :]]
                times = self.play(given), self.play(got)
                if max(times) < before:
                    self.hands[worst], self.hands[other] = given, got
                    self.times[worst], self.times[other] = times
                    return True
        return False
