"""Layers of a stage that are alike, and the room that a moment leaves for what they keep."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeLayers:
    """Layers of one stage that take and leave the same by every kind."""

    stage: int
    """Number of the stage."""
    layers: list[int]
    """In topological order."""
    kinds: list[int]
    """The numbers of the kinds that they may choose."""
    extra: list[int]
    """Ticks that each takes, on the slowest device of the stage."""
    kept: list[int]
    """Units that each leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a moment of an order leaves for what F leaves."""

    held: tuple[tuple[int, int], ...]
    """Stages and how many microbatches of each are held."""
    units: int
    """At most so many in all."""
