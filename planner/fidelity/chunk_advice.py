"""What would help a step whose devices have several stages, or whose backwards run in halves: all orders are listed."""

from collections.abc import Iterator, Sequence
from itertools import chain

from planner.fidelity.any_order_bounds import bound_any_assignment
from planner.fidelity.balance_advice import transfer_of
from planner.fidelity.order_advice import bound_orders, reorder
from planner.fidelity.partition_advice import recut_rows
from planner.fidelity.placement_advice import Remedy, describe_placing, place_anew
from planner.fidelity.run_pipelines import (
    PipelinePlayer,
    Row,
    StepShape,
    find_shape,
    one_pipeline,
    rows_of,
    with_even_transfers,
    with_rows,
)
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import RunStep

_MOST_CUTS = 12
"""Cuts that are played: those with the least bounds."""

LISTED = "list scheduling; no more microbatches in flight than as run"


def advise_chunks(steps: Sequence[RunStep], step: RunStep, *, blocks_per_stage: int) -> Iterator[Remedy]:
    """Another order; and where all pipelines are alike other dealings, places and cuts."""
    yield Remedy(
        what=f"another order within every pipeline ({LISTED})",
        makespan_ns=replay_ns(reorder(step)),
        lower_bound_ns=bound_orders(step),
    )
    if (shape := find_shape(step)) is None:
        return
    transfer_ns = transfer_of(step)
    rows = [*chain.from_iterable(rows_of(step, shape).values())]
    pipelines = len({pipeline for pipeline, _ in step.actions})
    yield Remedy(
        what=f"whole microbatches rebalanced (orders as run, or by {LISTED})",
        makespan_ns=replay_ns(_balance_in_order(step, shape, transfer_ns=transfer_ns)),
        lower_bound_ns=bound_any_assignment(rows, shape, pipelines=pipelines, transfer_ns=transfer_ns),
    )
    if (placed := place_anew(steps, step, shape=shape, order=reorder)) is not None:
        yield describe_placing(placed, orders="list scheduling")
    if (other := _cut_anew(step, shape, blocks_per_stage=blocks_per_stage)) is not None:
        yield other


def _cut_anew(step: RunStep, shape: StepShape, *, blocks_per_stage: int) -> Remedy | None:
    """The best number of blocks to leave on the last stage, if it is another than now."""
    count = len({stage for stage, _ in shape.cells})
    if count < 2:
        return None
    assignments, transfer_ns = rows_of(step, shape), transfer_of(step)
    cuts = {
        kept: {
            pipeline: recut_rows(assignment, shape, kept=kept, blocks_per_stage=blocks_per_stage)
            for pipeline, assignment in assignments.items()
        }
        for kept in range(count * blocks_per_stage + 1)
    }
    bounds = {
        kept: bound_any_assignment(
            [*chain.from_iterable(cut.values())], shape, pipelines=len(assignments), transfer_ns=transfer_ns
        )
        for kept, cut in cuts.items()
    }
    even, found = with_even_transfers(step, transfer_ns), dict[int, int]()
    for kept in sorted(cuts, key=bounds.__getitem__)[:_MOST_CUTS]:
        if not found or bounds[kept] < min(found.values()):
            again = with_rows(even, shape, assignments=cuts[kept])
            found[kept] = replay_ns(_balance_in_order(again, shape, transfer_ns=transfer_ns))
    kept = min(found, key=found.__getitem__)
    if kept == blocks_per_stage:
        return None
    return Remedy(
        what=f"divided again: {kept} of {blocks_per_stage} blocks left on the last stage, and rebalanced (orders as "
        f"run, or by {LISTED}; assumes that a stage is {blocks_per_stage} equal blocks; what the last takes "
        "longer stays there; the others share the rest evenly)",
        makespan_ns=found[kept],
        lower_bound_ns=min(bounds.values()),
    )


_MOST_ACTIONS = 1_500_000
"""Played at most for one round of exchanges: about a second."""

_FITTING = 4
"""Pairs of microbatches tried between two pipelines: those whose difference comes closest to half the pipelines'."""


def _balance_in_order(step: RunStep, shape: StepShape, *, transfer_ns: int) -> RunStep:
    """The step with the best dealing found, all transfers taking as long as that.

    Pipelines keep their orders; microbatches are dealt longest first onto the least loaded, then exchanged as it ends
    the slowest pipeline sooner. Behind it orders are made anew, and microbatches exchanged once more.
    """
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
        self.left = _MOST_ACTIONS
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
