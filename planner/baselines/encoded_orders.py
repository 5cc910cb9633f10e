"""Pipelines and device orders as the compiled methods read and write them
(`solver_models.simulation.placed_stages`).
"""

from itertools import accumulate, chain

import numpy as np

from planner.actions import Action, Kind
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.layout.costs import StageCost
from solver_models.instance import Integers
from solver_models.simulation.placed_stages import PlacedStages, column

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")
"""By their numbers in compiled code."""

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def place(pipeline: Pipeline) -> PlacedStages:
    """The stages of a pipeline as columns."""
    costs, numbers = pipeline.costs, range(pipeline.num_stages)
    of_position: list[list[int]] = [[] for _ in range(pipeline.num_positions)]
    for stage in numbers:
        of_position[pipeline.position_of[stage]].append(stage)
    transfers = [targets[stage] for stage in numbers for targets in (pipeline.activations_to, pipeline.gradients_to)]
    return PlacedStages(
        num_microbatches=pipeline.num_microbatches,
        table=np.array([_row(costs[stage], position=pipeline.position_of[stage]) for stage in numbers], np.int64),
        first=column([0, *accumulate(map(len, of_position))]),
        stages=column(list(chain.from_iterable(of_position))),
        budget=column(pipeline.budgets),
        transfer_start=column([0, *accumulate(map(len, transfers))]),
        transfers=np.array(list(chain.from_iterable(transfers)), np.int64).reshape(-1, 2),
    )


def _row(cost: StageCost, *, position: int) -> tuple[int, ...]:
    """A stage's row of the table."""
    ticks = (cost.duration_ns(kind) for kind in KINDS)
    return (*ticks, position, int(cost.has_weight_grad), cost.held_bytes, cost.stash_bytes, cost.weight_stash_bytes)


def encode_orders(device_orders: DeviceOrders, placed: PlacedStages) -> tuple[Integers, Integers]:
    """The actions of all positions, and where those of each begin."""
    count = placed.num_microbatches
    codes = [
        (action.stage * count + action.microbatch) * 4 + _NUMBERS[action.kind]
        for device_order in device_orders
        for action in device_order
    ]
    return column(codes), column([0, *accumulate(map(len, device_orders))])


def name_actions(device_orders: Integers, lengths: Integers, *, placed: PlacedStages) -> DeviceOrders:
    """The device orders of compiled code; the first of `lengths` of every row count."""
    count = placed.num_microbatches
    return [
        [Action(KINDS[code & 3], (code >> 2) // count, (code >> 2) % count) for code in device_order[:length].tolist()]
        for device_order, length in zip(device_orders, lengths.tolist(), strict=True)
    ]
