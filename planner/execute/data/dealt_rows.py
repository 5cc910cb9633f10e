"""The rows of an iteration whose microbatches are dealt anew: every pipeline runs 1F1B over those that it is dealt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.actions import Action
from planner.execute.table.layout import Layout
from planner.execute.table.routes import Cell, lower
from planner.execute.table.watch import describe_needs
from planner.execute.table.wiring import StageEdge

_REMEDY = "plan with max_stages_per_device = 1 and uneven_replication = false, or leave `Training.deal` out"


def rebalance(layout: Layout) -> Layout:
    """The layout of a plan with a microbatch for each pipeline, in the place of those that every iteration deals.

    The plan's own orders are those of its own microbatches. Raises ValueError unless it is one of equal pipelines with
    a stage on every device.
    """
    counts = {layout.num_replicas_of(stage) for stage in range(layout.num_stages)}
    if len(counts) > 1 or layout.samples or layout.parts:
        what = "has samples" if layout.samples else "places I or W elsewhere"
        what = f"has stages of {' and '.join(map(str, sorted(counts)))} replicas" if len(counts) > 1 else what
        raise ValueError(f"`Training.deal` deals whole microbatches to equal pipelines, but the plan {what}; {_REMEDY}")
    for rank in range(layout.world_size):
        stages = layout.stages_of(rank)
        if len(stages) > 1:
            raise ValueError(
                f"`Training.deal` lets every pipeline run 1F1B, for which a device holds one stage, but "
                f"{layout.devices[rank]} holds {', '.join(map(str, stages))}; {_REMEDY}"
            )
    assignments = tuple((number,) for number in range(counts.pop()))
    balanced = replace(layout, num_microbatches=len(assignments), dealing=assignments)
    return replace(balanced, rows=_rows_of(balanced))


def _rows_of(layout: Layout) -> tuple[tuple[Action, ...], ...]:
    """1F1B of every rank over its assignment; each holds one stage, or none."""
    return tuple(
        tuple(
            action
            for stage in layout.stages_of(rank)
            for action in make_1f1b(layout.assignment_of(stage, rank), stage=stage, num_stages=layout.num_stages)
        )
        for rank in range(layout.world_size)
    )


def make_1f1b(assignment: Sequence[int], *, stage: int, num_stages: int) -> tuple[Action, ...]:
    """F of as many microbatches as there are later stages, then F and B in turns, then what B are left."""
    warm = min(num_stages - 1 - stage, len(assignment))
    row = [Action("F", stage, microbatch) for microbatch in assignment[:warm]]
    for ahead, behind in zip(assignment[warm:], assignment, strict=False):
        row += [Action("F", stage, ahead), Action("B", stage, behind)]
    return (*row, *(Action("B", stage, microbatch) for microbatch in assignment[len(assignment) - warm :]))


class BalancedRow(NamedTuple):
    """What one process does in an iteration."""

    cells: tuple[Cell, ...]
    needs: dict[str, str]
    """What F and B wait for, for the watch."""


class BalancedRows:
    """Makes the rows of one process, and keeps them by how many microbatches its pipeline has."""

    def __init__(self, layout: Layout, edges: Sequence[StageEdge], *, rank: int) -> None:
        """`layout`: as `rebalance` gives it."""
        self.edges, self.rank = edges, rank
        (stage,) = layout.stages_of(rank)
        replica = layout.replica_at(stage, rank)
        owners = tuple(layout.groups_of(number)[replica] for number in range(layout.num_stages))
        self._pipeline = Layout(
            devices=layout.devices, owners=owners, rows=(), num_microbatches=0, widths=layout.widths
        )
        self._kept = dict[int, tuple[Cell, ...]]()

    def make(self, assignment: Sequence[int]) -> BalancedRow:
        """For these microbatches in this order."""
        places = self._kept.get(len(assignment)) or self._lower(len(assignment))
        self._kept[len(assignment)] = places
        cells = tuple(
            cell if cell.microbatch < 0 else cell._replace(microbatch=assignment[cell.microbatch]) for cell in places
        )
        rows = _rows_of(replace(self._pipeline, dealing=(tuple(assignment),)))
        named = replace(self._pipeline, num_microbatches=len(assignment), rows=rows)
        return BalancedRow(cells, describe_needs(named, self.edges, rank=self.rank))

    def _lower(self, count: int) -> tuple[Cell, ...]:
        """With messages and the reduction."""
        layout = replace(self._pipeline, num_microbatches=count)
        return tuple(lower(replace(layout, rows=_rows_of(layout)), self.edges)[self.rank])
