"""Stages that have their devices, as compiled methods read them, and the times at which things reach them.

An action is one integer: (stage * M + microbatch) * 4 + kind.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Integers

FORWARD_TICKS, INPUT_TICKS, WEIGHT_TICKS, BACKWARD_TICKS, POSITION, HAS_WEIGHT, HELD, STASH, WEIGHT_STASH = range(9)
"""Columns of a stage: ticks of F, I, W and B by the numbers of these kinds, where it stands, 1 where there is a W,
units from F on, units while I or B runs, units between I and W."""

TARGET, DELAY = range(2)
"""Columns of a transfer: the stage that it leads to, ticks on the way."""

MISSING, READY = range(2)
"""Columns of what a pass waits for: things that are still to come, when the latest of the others comes."""


class PlacedStages(NamedTuple):
    """S stages on P device positions, M microbatches, L transfers of what stages send each other."""

    num_microbatches: int
    """M."""
    table: Integers
    """[S, 9] by the columns of a stage."""
    first: Integers
    """[P + 1] where the stages of every position begin in `stages`."""
    stages: Integers
    """[S] the stages, one position after the other."""
    budget: Integers
    """[P] units for stashes."""
    transfer_start: Integers
    """[2 S + 1] where the transfers begin that leave a stage after F (2 s) and after I or B (2 s + 1)."""
    transfers: Integers
    """[L, 2] by the columns of a transfer."""


def column(values: Sequence[int]) -> Integers:
    """The values as a column."""
    return np.array(values, dtype=np.int64)


@kernel
def make_arrivals(placed: PlacedStages) -> Integers:
    """[2, S, M, 2] what F (0) and I or B (1) of each stage and microbatch wait for, its own F not counted."""
    arrivals = np.zeros((2, placed.table.shape[0], placed.num_microbatches, 2), np.int64)
    for s in range(placed.table.shape[0]):
        for direction in range(2):
            for transfer in range(
                placed.transfer_start[2 * s + direction], placed.transfer_start[2 * s + direction + 1]
            ):
                for microbatch in range(placed.num_microbatches):
                    arrivals[direction, placed.transfers[transfer, TARGET], microbatch, MISSING] += 1
    return arrivals


@kernel
def longest_order(placed: PlacedStages) -> int:
    """Most actions of a position: F, I and W of all its stages."""
    most = 1
    for p in range(placed.budget.shape[0]):
        most = max(most, 3 * placed.num_microbatches * (placed.first[p + 1] - placed.first[p]))
    return most
