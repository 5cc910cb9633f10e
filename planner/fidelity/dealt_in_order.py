"""Whole microbatches dealt anew where devices have several stages, or backwards run in halves.

Pipelines keep their orders; which microbatch stands where in them is dealt: longest first onto the least loaded, then
exchanges that end the slowest pipeline sooner. Behind it orders are made anew, and microbatches exchanged once more.
"""

from collections.abc import Sequence
from itertools import chain

from planner.fidelity.order_advice import reorder
from planner.fidelity.run_pipelines import (
    PipelinePlayer,
    Row,
    StepShape,
    one_pipeline,
    rows_of,
    with_even_transfers,
    with_rows,
)
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import RunStep

MOST_ACTIONS = 1_500_000
"""Played at most for one round of exchanges: about a second."""

_FITTING = 4
"""Pairs of microbatches tried between two pipelines: those whose difference comes closest to half the pipelines'."""


def balance_in_order(step: RunStep, shape: StepShape, *, transfer_ns: int) -> RunStep:
    """The step with the best dealing found, all transfers taking as long as that."""
    even = with_even_transfers(step, transfer_ns)
    found = [even, _longest_first(even, shape)]
    for _ in range(2):
        best = min(found, key=replay_ns)
        balanced = _exchange(best, shape)
        found = [best, balanced, reorder(balanced)]
    return min(found, key=replay_ns)


def _longest_first(step: RunStep, shape: StepShape) -> RunStep:
    """As many microbatches as run to every pipeline, the longest first to where least is to do."""
    assignments = rows_of(step, shape)
    balanced: dict[int, list[Row]] = {pipeline: [] for pipeline in assignments}
    for row in sorted(chain.from_iterable(assignments.values()), key=sum, reverse=True):
        free = [pipeline for pipeline, assignment in balanced.items() if len(assignment) < len(assignments[pipeline])]
        least = min(free, key=lambda pipeline: sum(map(sum, balanced[pipeline])))
        balanced[least].append(row)
    return with_rows(step, shape, assignments=balanced)


def _exchange(step: RunStep, shape: StepShape) -> RunStep:
    table = _Assignments(step, shape)
    while table.left > 0 and (table.swap_within() or table.swap_between()):
        pass
    return with_rows(step, shape, assignments=table.assignments)


class _Assignments:
    """Who has which microbatches where, and when each pipeline ends."""

    def __init__(self, step: RunStep, shape: StepShape) -> None:
        self.assignments = rows_of(step, shape)
        self.players = {pipeline: PipelinePlayer(one_pipeline(step, pipeline), shape) for pipeline in self.assignments}
        self.left = MOST_ACTIONS
        self.times = {pipeline: self.play(pipeline, assignment) for pipeline, assignment in self.assignments.items()}

    @property
    def worst(self) -> int:
        """The slowest pipeline."""
        return max(self.times, key=self.times.__getitem__)

    def play(self, pipeline: int, assignment: Sequence[Row]) -> int:
        """When it ends with these."""
        self.left -= len(self.players[pipeline])
        return self.players[pipeline].play([*chain.from_iterable(assignment)])

    def swap_within(self) -> bool:
        """Two microbatches of the slowest pipeline change places."""
        worst = self.worst
        assignment = self.assignments[worst]
        for first in range(len(assignment)):
            for second in range(first + 1, len(assignment)):
                if assignment[first] == assignment[second] or self.left <= 0:
                    continue
                other = [*assignment]
                other[first], other[second] = assignment[second], assignment[first]
                if (time := self.play(worst, other)) < self.times[worst]:
                    self.assignments[worst], self.times[worst] = other, time
                    return True
        return False

    def swap_between(self) -> bool:
        """One of the slowest pipeline for a shorter one of another; pipelines with most room first."""
        worst, before = self.worst, self.times[self.worst]
        for pipeline in sorted(self.times, key=self.times.__getitem__):
            mine, theirs = self.assignments[worst], self.assignments[pipeline]
            long, short = [*map(sum, mine)], [*map(sum, theirs)]
            room = sum(long) - sum(short)
            pairs = sorted(
                (abs(2 * (one - other) - room), i, j)
                for i, one in enumerate(long)
                for j, other in enumerate(short)
                if one > other and pipeline != worst
            )
            for _, i, j in pairs[:_FITTING]:
                given, got = [*mine[:i], theirs[j], *mine[i + 1 :]], [*theirs[:j], mine[i], *theirs[j + 1 :]]
                times = self.play(worst, given), self.play(pipeline, got)
                if max(times) < before:
                    self.assignments[worst], self.assignments[pipeline] = given, got
                    self.times[worst], self.times[pipeline] = times
                    return True
            if self.left <= 0:
                return False
        return False
