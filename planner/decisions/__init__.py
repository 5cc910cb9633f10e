"""Decisions of a plan, a folder each: delete the folder, and nobody can ask for the decision.

`option.py` refuses what excludes it, `move.py` makes its part of the search. What the folders hold is found when the
program starts.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

KNOWN = ("max_active_stages", "unequal_shares")
"""Options that ask for a decision with a folder of its own."""


@cache
def found() -> tuple[str, ...]:
    """The decisions that are there, by the names of their options."""
    return tuple(sorted(each.parent.name for each in Path(__file__).parent.glob("*/option.py")))


def option_of(name: str) -> ModuleType:
    """What a decision excludes; ValueError if it is not there."""
    if name not in found():
        raise ValueError(
            f"options: {name} = true, but planner/decisions/{name} is not installed; set it to false, or install the "
            "whole package"
        )
    return import_module(f"{__name__}.{name}.option")


def moves() -> Iterator[ModuleType]:
    """The parts of the search of all decisions that are there."""
    return (import_module(f"{__name__}.{name}.move") for name in found())
