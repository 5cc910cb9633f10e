"""What would help a step whose devices have several stages, or whose backwards run in halves: all orders are listed."""

from collections.abc import Iterator, Sequence
from itertools import chain

from planner.fidelity.any_order_bounds import bound_any_assignment
from planner.fidelity.balance_advice import transfer_of
from planner.fidelity.dealt_in_order import balance_in_order
from planner.fidelity.order_advice import bound_orders, reorder
from planner.fidelity.partition_advice import recut_rows
from planner.fidelity.placement_advice import place_anew
from planner.fidelity.remedy import Remedy, describe_placing
from planner.fidelity.run_pipelines import StepShape, find_shape, rows_of, with_even_transfers, with_rows
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
        makespan_ns=replay_ns(balance_in_order(step, shape, transfer_ns=transfer_ns)),
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
            found[kept] = replay_ns(balance_in_order(again, shape, transfer_ns=transfer_ns))
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
