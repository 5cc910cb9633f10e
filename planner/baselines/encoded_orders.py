"""Pipelines and words as the compiled methods read and write them (`solver_models.simulation.placed_stages`)."""

from itertools import accumulate, chain

import numpy as np

from planner.actions import Action, Kind
from planner.baselines.pipeline import Pipeline, Words
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
    legs = [way[stage] for stage in numbers for way in (pipeline.activations_to, pipeline.gradients_to)]
    return PlacedStages(
        num_microbatches=pipeline.num_microbatches,
        table=np.array([_row(costs[stage], position=pipeline.position_of[stage]) for stage in numbers], np.int64),
        first=column([0, *accumulate(map(len, of_position))]),
        stages=column(list(chain.from_iterable(of_position))),
        budget=column(pipeline.budgets),
        leg_start=column([0, *accumulate(map(len, legs))]),
        legs=np.array(list(chain.from_iterable(legs)), np.int64).reshape(-1, 2),
    )


def _row(cost: StageCost, *, position: int) -> tuple[int, ...]:
    """A stage's row of the table."""
    ticks = (cost.duration_ns(kind) for kind in KINDS)
    return (*ticks, position, int(cost.has_weight_grad), cost.held_bytes, cost.stash_bytes, cost.weight_stash_bytes)


def encode_words(words: Words, placed: PlacedStages) -> tuple[Integers, Integers]:
    """The actions of all positions, and where those of each begin."""
    count = placed.num_microbatches
    codes = [
        (action.stage * count + action.microbatch) * 4 + _NUMBERS[action.kind] for word in words for action in word
    ]
    return column(codes), column([0, *accumulate(map(len, words))])


def name_actions(words: Integers, lengths: Integers, *, placed: PlacedStages) -> Words:
    """The words of compiled code; the first of `lengths` of every row count."""
    count = placed.num_microbatches
    return [
        [Action(KINDS[code & 3], (code >> 2) // count, (code >> 2) % count) for code in word[:length].tolist()]
        for word, length in zip(words, lengths.tolist(), strict=True)
    ]
