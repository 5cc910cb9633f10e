"""Microbatches of different length, dealt whole to the pipelines of a data-parallel job so that the slowest ends early.

Every pipeline runs 1F1B over the same stages. Longest first onto the least loaded pipeline is the start; then moves,
swaps and other orders within the slowest pipeline are played, and only what makes it faster is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, zip_longest
from math import ceil, floor
from typing import Protocol

from planner.bounds.listed.dealt_microbatches import bound_1f1b, bound_any_order
from planner.bounds.listed.paced_last_stage import bound_last_stage
from planner.bounds.loop.loop_order import FORWARD, order_of
from solver_models.simulation.in_order import OrderedSteps, play_in_order

_MAX_TRIALS = 2_400
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
    held_bytes: tuple[int, ...] = ()
    """At each length what is held from F to the end of the backward; empty: not known."""
    room_bytes: int | None = None
    """What all microbatches in flight may hold together; None: not known, or without a limit."""

    def __post_init__(self) -> None:
        counts = {len(self.lengths), len(self.forward_ns), len(self.backward_ns)}
        counts |= {len(self.held_bytes)} if self.held_bytes else set()
        if counts == {0} or len(counts) != 1:
            raise ValueError(f"stage times: {sorted(counts)} lengths and times; give one of each per measured length")
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"stage times: lengths {self.lengths} do not ascend; sort them and measure each once")
        if min(*self.forward_ns, *self.backward_ns, *self.held_bytes, 0) < 0:
            raise ValueError("stage times: a time or a size is negative; measure again")
        if self.room_bytes is not None and not self.held_bytes:
            raise ValueError(f"stage times: room_bytes = {self.room_bytes} without held_bytes; state both")

    @property
    def of_pack(self) -> tuple[int, int]:
        """What a pack takes beside its sequences: a table knows only sequences."""
        return 0, 0

    def at(self, length: int) -> tuple[Fraction, Fraction]:
        """Forward and backward, interpolated between the neighbours; ValueError outside what was measured."""
        forward, backward = (self._interpolate(row, length) for row in (self.forward_ns, self.backward_ns))
        return forward, backward

    def held_at(self, length: int) -> int:
        """Bytes, interpolated and rounded up; ValueError outside what was measured."""
        return ceil(self._interpolate(self.held_bytes, length))

    def _interpolate(self, row: Sequence[int], length: int) -> Fraction:
        if not self.lengths[0] <= length <= self.lengths[-1]:
            raise ValueError(
                f"length = {length}: only {self.lengths[0]} to {self.lengths[-1]} were measured; measure a stage "
                "there too"
            )
        right = next(place for place, known in enumerate(self.lengths) if known >= length)
        left = max(0, right - 1)
        width = self.lengths[right] - self.lengths[left]
        part = Fraction(length - self.lengths[left], width) if width else Fraction(0)
        return row[left] + part * (row[right] - row[left])


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """One microbatch."""

    forward_ns: tuple[int, ...]
    """Per stage."""
    backward_ns: tuple[int, ...]
    """Per stage."""


class Annealing(Protocol):
    """Who takes seconds for a better dealing: `planner.planning.starts.annealed_deals`."""

    def __call__(
        self, assignments: Sequence[Sequence[int]], *, microbatches: Sequence[Durations], transfer_ns: int
    ) -> list[list[int]]:
        """Assignments whose slowest pipeline ends no later than that of `assignments`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Microbatches of each pipeline, and how long the slowest takes."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    """What limits which microbatches a stage may have in flight, and so their order."""

    held_bytes: tuple[tuple[int, ...], ...]
    """Per microbatch and stage."""
    room_bytes: tuple[int | None, ...]
    """Per stage; None: no limit."""

    def crowded(self, assignment: Sequence[int]) -> tuple[int, int] | None:
        """The first stage on which 1F1B over these has no room, and the bytes that it would hold; None: all have.

        Stage s of S has S - s microbatches in flight at most, those that follow each other.
        """
        count = len(self.room_bytes)
        for stage, room in enumerate(self.room_bytes):
            if room is None:
                continue
            held, several = (
                [self.held_bytes[number][stage] for number in assignment],
                min(count - stage, len(assignment)),
            )
            most = max((sum(held[at : at + several]) for at in range(len(held) - several + 1)), default=0)
            if most > room:
                return stage, most
        return None


def deal(lengths: Sequence[int], pipelines: int, *, stages: Sequence[StageTimes], transfer_ns: int = 0) -> Dealing:
    """Deal microbatches by their lengths; `planner.balanced_stages` has the stages of a plan.

    Raises ValueError where a length lies outside what was measured of a stage, and where no dealing is found whose
    microbatches in flight fit into the stages' room.
    """
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
    return balance_durations(
        [up[length] for length in lengths],
        pipelines,
        transfer_ns=transfer_ns,
        at_least=[down[length] for length in lengths],
        in_flight=_in_flight(lengths, stages),
    )


def _in_flight(lengths: Sequence[int], stages: Sequence[StageTimes]) -> _InFlight | None:
    limited = [stage.room_bytes is not None for stage in stages]
    if not any(limited):
        return None
    held = {
        length: tuple(stage.held_at(length) if has else 0 for stage, has in zip(stages, limited, strict=True))
        for length in set(lengths)
    }
    return _InFlight(
        held_bytes=tuple(held[length] for length in lengths), room_bytes=tuple(stage.room_bytes for stage in stages)
    )


def balance_durations(
    microbatches: Sequence[Durations],
    pipelines: int,
    *,
    transfer_ns: int = 0,
    at_least: Sequence[Durations] | None = None,
    annealing: Annealing | None = None,
    in_flight: _InFlight | None = None,
) -> Dealing:
    """Deal microbatches whose times per stage are known; `at_least`: the same rounded down, for the bound.

    `annealing`: take seconds instead of milliseconds, for a question that is asked once; it knows no memory.
    """
    if pipelines < 1:
        raise ValueError(f"pipelines = {pipelines}; give at least one")
    counts = {len(times) for each in microbatches for times in (each.forward_ns, each.backward_ns)}
    if len(counts) > 1 or counts == {0}:
        raise ValueError(f"microbatches have times of {sorted(counts)} stages; give one forward and backward per stage")
    if annealing is not None and in_flight is not None:
        raise ValueError("annealing and in_flight: annealing ignores memory; leave one of them out")
    table = _Table(microbatches, pipelines, transfer_ns=transfer_ns, in_flight=in_flight)
    start = max(table.times, default=0)
    table.improve()
    if annealing is not None:
        table.replace(annealing(table.assignments, microbatches=microbatches, transfer_ns=transfer_ns))
    return Dealing(
        pipelines=tuple(tuple(assignment) for assignment in table.assignments),
        largest_ns=max(table.times, default=0),
        longest_first_ns=start,
        lower_bound_ns=bound_dealings(at_least or microbatches, pipelines, transfer_ns=transfer_ns),
    )


def bound_dealings(
    microbatches: Sequence[Durations], pipelines: int, *, transfer_ns: int = 0, is_1f1b: bool = False
) -> int:
    """No dealing ends before: in whatever order the pipelines run, or only if they run 1F1B (`is_1f1b`)."""
    bounds = (bound_1f1b, bound_last_stage) if is_1f1b else (bound_any_order,)
    forward, backward = ([getattr(each, name) for each in microbatches] for name in ("forward_ns", "backward_ns"))
    return max(bound(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns) for bound in bounds)


@cache
def pipeline_actions(stages: int, count: int) -> tuple[tuple[int, int, bool], ...]:
    """1F1B's actions (stage, place, is forward), each after those that it waits for."""
    steps = order_of(ranks=stages, chunks=1, count=count).steps
    return tuple((stage, place, direction == FORWARD) for stage, direction, _, place in steps)


def play_1f1b(forward: Sequence[Sequence[int]], backward: Sequence[Sequence[int]], *, transfer_ns: int = 0) -> int:
    """When a pipeline with these microbatches, in this order, ends; times are by microbatch, then stage."""
    if not forward:
        return 0
    stages, count, both = len(forward[0]), len(forward), (backward, forward)
    ticks = [both[ahead][place][stage] for stage, place, ahead in pipeline_actions(stages, count)]
    return max(play_in_order(_steps_of(stages, count, transfer_ns=transfer_ns), ticks))


@cache
def _steps_of(stages: int, count: int, *, transfer_ns: int) -> OrderedSteps:
    """`pipeline_actions`, each waiting for the stage before, or behind."""
    actions = pipeline_actions(stages, count)
    number = {action: place for place, action in enumerate(actions)}
    sources = [
        number.get((stage - 1 if is_forward else stage + 1, place, is_forward), -1)
        for stage, place, is_forward in actions
    ]
    devices = [stage for stage, *_ in actions]
    return OrderedSteps(devices, sources, [transfer_ns] * len(actions), [0] * len(actions))


class _Table:
    """Who holds what, and when each pipeline ends."""

    def __init__(
        self, microbatches: Sequence[Durations], pipelines: int, *, transfer_ns: int, in_flight: _InFlight | None = None
    ) -> None:
        """Longest first onto the least loaded, by the stage where all have most to do."""
        self.in_flight = in_flight
        self.forward = [each.forward_ns for each in microbatches]
        self.backward = [each.backward_ns for each in microbatches]
        self.num_stages = len(self.forward[0]) if microbatches else 0
        self.transfer_ns = transfer_ns
        loads = [[f + b for f, b in zip(*both, strict=True)] for both in zip(self.forward, self.backward, strict=True)]
        busiest = max(range(self.num_stages), key=lambda stage: sum(row[stage] for row in loads), default=0)
        self.load = [row[busiest] for row in loads]
        self.assignments: list[list[int]] = [[] for _ in range(pipelines)]
        sums = [0] * pipelines
        for number in sorted(range(len(loads)), key=lambda number: -self.load[number]):
            least = min(range(pipelines), key=lambda pipeline: sums[pipeline])
            self.assignments[least].append(number)
            sums[least] += self.load[number]
        self.assignments = [
            self.fitting(assignment, pipeline=number) for number, assignment in enumerate(self.assignments)
        ]
        self.trials = 0
        self.times = [self.play(assignment) for assignment in self.assignments]

    def fits(self, assignment: Sequence[int]) -> bool:
        """Whether what is in flight has room."""
        return self.in_flight is None or self.in_flight.crowded(assignment) is None

    def fitting(self, assignment: list[int], *, pipeline: int) -> list[int]:
        """The same microbatches, where need be long and short ones in turns; ValueError if that is not enough."""
        if self.in_flight is None or self.fits(assignment):
            return assignment
        half = (len(assignment) + 1) // 2
        interleaved = [
            number for pair in zip_longest(assignment[:half], reversed(assignment[half:])) for number in pair
        ]
        mixed = [number for number in interleaved if number is not None]
        if crowded := self.in_flight.crowded(mixed):
            stage, held = crowded
            raise ValueError(
                f"room_bytes = {self.in_flight.room_bytes[stage]:,} on stage {stage}: pipeline {pipeline} holds "
                f"{held:,} bytes in flight there; use shorter microbatches, more pipelines or larger devices"
            )
        return mixed

    def play(self, assignment: Sequence[int]) -> int:
        """When a pipeline with these microbatches, in this order, ends."""
        self.trials += 1
        forward, backward = ([rows[number] for number in assignment] for rows in (self.forward, self.backward))
        return play_1f1b(forward, backward, transfer_ns=self.transfer_ns)

    def replace(self, assignments: list[list[int]]) -> None:
        """Deal anew."""
        self.assignments = assignments
        self.times = [self.play(assignment) for assignment in assignments]

    def improve(self) -> None:
        """Make the slowest pipeline faster as long as that is found."""
        while self.trials < _MAX_TRIALS:
            worst = max(range(len(self.times)), key=lambda pipeline: self.times[pipeline])
            if not (self.reorder(worst) or self.exchange(worst)):
                return

    def reorder(self, worst: int) -> bool:
        """Another order of the same microbatches."""
        assignment, best = self.assignments[worst], self.times[worst]
        for taken in range(len(assignment)):
            rest = assignment[:taken] + assignment[taken + 1 :]
            for place in range(len(assignment)):
                if self.trials >= _MAX_TRIALS:
                    return False
                other = [*rest[:place], assignment[taken], *rest[place:]]
                if place != taken and self.fits(other) and (time := self.play(other)) < best:
                    self.assignments[worst], self.times[worst] = other, time
                    return True
        return False

    def exchange(self, worst: int) -> bool:
        """Give a microbatch away, or for a shorter one; pipelines with most room first."""
        assignment, before = self.assignments[worst], self.times[worst]
        for other in sorted(range(len(self.times)), key=lambda pipeline: self.times[pipeline]):
            room = before - self.times[other]
            if other == worst or room <= 0:
                continue
            pairs = [(self.load[mine], i, None) for i, mine in enumerate(assignment)] + [
                (self.load[mine] - self.load[theirs], i, j)
                for i, mine in enumerate(assignment)
                for j, theirs in enumerate(self.assignments[other])
            ]
            fitting = sorted(
                (abs(2 * load - room), i, -1 if j is None else j) for load, i, j in pairs if 0 < load < room
            )
            for _, i, j in fitting[:4]:
                if self.trials >= _MAX_TRIALS:
                    return False
                given = assignment[:i] + ([] if j < 0 else [self.assignments[other][j]]) + assignment[i + 1 :]
                theirs = self.assignments[other]
                got = [*theirs, assignment[i]] if j < 0 else [*theirs[:j], assignment[i], *theirs[j + 1 :]]
                if not (self.fits(given) and self.fits(got)):
                    continue
                times = self.play(given), self.play(got)
                if max(times) < before:
                    self.assignments[worst], self.assignments[other] = given, got
                    self.times[worst], self.times[other] = times
                    return True
        return False
