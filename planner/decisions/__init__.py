"""Decisions of a plan, a folder each: delete the folder, and nobody can ask for the decision.

`option.py` refuses what excludes it, `move.py` makes its part of the search, `driver.py` ranks candidates by an
objective of its own, `bound.py` has what no plan is below. What the folders hold is found when the program starts.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

KNOWN = {"price": ("objective", "cost"), "unequal_shares": ("unequal_shares", True)}
"""Per decision with a folder of its own the option that asks for it, and the option's value."""


@cache
def found(part: str = "option") -> tuple[str, ...]:
    """The decisions that are there and have such a module."""
    return tuple(sorted(each.parent.name for each in Path(__file__).parent.glob(f"*/{part}.py")))


def asked(options: object) -> Iterator[str]:
    """The decisions that some options ask for."""
    return (name for name, (field, value) in KNOWN.items() if getattr(options, field) == value)


def option_of(name: str) -> ModuleType:
    """What a decision excludes; ValueError if it is not there."""
    if name not in found():
        raise ValueError(
            f"options: {shown(name)}, but planner/decisions/{name} is not installed; leave the option out, or install "
            "the whole package"
        )
    return part_of(name, "option")


def shown(name: str) -> str:
    """What asks for a decision, as it stands in messages."""
    field, value = KNOWN[name]
    return f"{field} = {str(value).lower()}"


def part_of(name: str, part: str) -> ModuleType:
    """A module of a decision that is there."""
    return import_module(f"{__name__}.{name}.{part}")


def moves() -> Iterator[ModuleType]:
    """The parts of the search of all decisions that are there."""
    return (part_of(name, "move") for name in found("move"))


def drivers(options: object) -> Iterator[ModuleType]:
    """What ranks candidates by an objective that some options ask for."""
    return (part_of(name, "driver") for name in asked(options) if name in found("driver"))
