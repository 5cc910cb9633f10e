"""Rows of cells with one cell dropped, repeated or moved: none of them may pass."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

Cell = TypeVar("Cell")


def spoiled(rows: Sequence[Sequence[Cell]], seed: int) -> Iterator[tuple[str, Cell, list[list[Cell]]]]:
    """What was done, to which cell, and the rows that are left."""
    rng = random.Random(seed)
    rank = rng.randrange(len(rows))
    place = rng.randrange(len(rows[rank]))
    for change in ("drop", "repeat", "move"):
        broken = [list(row) for row in rows]
        cell = broken[rank].pop(place)
        if change == "repeat":
            broken[rank][place:place] = [cell, cell]
        elif change == "move" and len(rows) > 1:
            broken[(rank + 1) % len(rows)].append(cell)
        yield change, cell, broken
