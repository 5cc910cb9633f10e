"""Who runs what and when in its word, as a table: so that rules about millions of actions are looked up, not listed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from planner.encoding import Integers, Words, holders

FORWARD, INPUT_GRAD, WEIGHT_GRAD, BACKWARD = range(4)
"""Columns of a census."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Every action of a schedule found at a (device, stage) that works for its stage, for a microbatch that exists."""

    stage: Integers
    """[rows] stage of every row; a row is a device with one of the stages it works for."""
    position: Integers
    """[rows, 4, M] where in its word the last such action stands, by kind (F, I, W, B); -1 where there is none."""
    is_repeated: bool
    """Whether an action stands in a word more than once."""

    def has(self, kind: int) -> NDArray[numpy.bool_]:
        """[rows, M] whether the action is there."""
        found: NDArray[numpy.bool_] = self.position[:, kind] >= 0
        return found

    def precedes(self, first: int, then: int) -> bool:
        """Whether every action `then` stands after the action `first` of the same microbatch, which is there."""
        early, late = self.position[:, first], self.position[:, then]
        return bool(((late < 0) | ((early >= 0) & (early < late))).all())


def take_census(
    words: Words, kinds_on: Mapping[str, Mapping[int, str]], *, num_stages: int, num_microbatches: int
) -> Census | None:
    """The census of a schedule, given the stages every device works for; None if an action is out of place."""
    places = [(device, stage) for device, held in kinds_on.items() for stage in held]
    rows = holders(words, {place: row for row, place in enumerate(places)}, num_stages=num_stages)
    if rows is None or max(words.microbatch, default=0) >= num_microbatches:
        return None
    shape = len(places), 4, num_microbatches
    position = numpy.full(shape, -1, dtype=numpy.int64)
    index = numpy.arange(len(words.kind)) - words.first[:-1][words.device]
    position[rows, words.kind, words.microbatch] = index
    return Census(
        stage=numpy.array([stage for _, stage in places], dtype=numpy.int64),
        position=position,
        is_repeated=int((position >= 0).sum()) < len(index),
    )
