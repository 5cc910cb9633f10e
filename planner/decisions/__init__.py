"""Decisions of a plan, a folder each: delete the folder, and nobody can ask for the decision.

`option.py` refuses what excludes it, `move.py` makes its part of the search, `driver.py` ranks candidates by an
objective of its own, `bound.py` has what no plan is below. What the folders hold is found when the program starts.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

KNOWN = {
    "price": ("objective", "cost"),
    "split_placement": ("split_placement", True),
    "max_active_stages": ("max_active_stages", ...),
    "fully_shard": ("fully_shard", True),
    "recompute_layers": ("recompute_layers", True),
    "unequal_shares": ("unequal_shares", True),
    "recompute_microbatches": ("recompute_microbatches", True),
    "offload": ("offload", True),
}
"""Per decision with a folder of its own the option that asks for it, and its value (`...`: any but None).

In the order in which their parts of the search take turns.
"""


@cache
def found(part: str = "option") -> tuple[str, ...]:
    """The decisions that are there and have such a module."""
    return tuple(name for name in KNOWN if (Path(__file__).parent / name / f"{part}.py").exists())


def _asked(options: object) -> dict[str, str]:
    """The decisions that some options ask for, each with what asks for it."""
    stated = {name: (field, getattr(options, field), value) for name, (field, value) in KNOWN.items()}
    return {
        name: f"{field} = {str(now).lower()}"
        for name, (field, now, value) in stated.items()
        if now == value or (value is ... and now is not None)
    }


def _option_of(name: str, asked: str) -> ModuleType:
    """What a decision excludes; ValueError if it is not there."""
    if name not in found():
        raise ValueError(
            f"options: {asked}, but planner/decisions/{name} is not installed; leave the option out, or install "
            "the whole package"
        )
    return part_of(name, "option")


def part_of(name: str, part: str) -> ModuleType:
    """A module of a decision that is there."""
    return import_module(f"{__name__}.{name}.{part}")


def refuse(options: object) -> None:
    """ValueError if what is asked for is not there, or excluded by another option."""
    for name, asked in _asked(options).items():
        getattr(_option_of(name, asked), "refuse", _nothing)(options)


def require(options: object, cluster: object) -> None:
    """ValueError if a cluster lacks what is asked for needs."""
    for name, asked in _asked(options).items():
        getattr(_option_of(name, asked), "require", _nothing)(cluster)


def _nothing(subject: object) -> None:
    del subject


def only_for_one_size(options: object) -> dict[str, bool]:
    """By what is asked for, as it stands in messages: whether all microbatches must have one size."""
    return {asked: _option_of(name, asked).ONE_SIZE_ONLY for name, asked in _asked(options).items()}


def parts() -> tuple[str, ...]:
    """The names of the parts of the search, as evidence states them."""
    return tuple(part_of(name, "option").PART for name in found("move"))


def moves() -> Iterator[ModuleType]:
    """The parts of the search of all decisions that are there."""
    return (part_of(name, "move") for name in found("move"))


def drivers(options: object) -> Iterator[ModuleType]:
    """What ranks candidates by an objective that some options ask for."""
    return (part_of(name, "driver") for name in _asked(options) if name in found("driver"))
