"""Decisions of a plan, a folder or a file each: delete it, and nobody can ask for the decision.

`option.py` (or the file) has a `DECISION`: what it excludes, which bounds and searches know it, and how users ask for
it (`choices.py`). `move.py` makes its part of the search, `driver.py` ranks candidates by an objective of its own,
`bound.py` has what no plan is below. What is there is found when the program starts.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.decisions.decision import Decision, OpenDecision, text_of

KNOWN: dict[str, tuple[str, tuple[object, ...]]] = {
    "price": ("objective", ("makespan", "span")),
    "width": ("max_width", (1,)),
    "sharded_optimizer": ("shard_optimizer", ("never",)),
    "looped_order": ("order", ("any",)),
    "recompute": ("recompute", (False,)),
    "split_placement": ("split_placement", (False,)),
    "max_active_stages": ("max_active_stages", (None,)),
    "fully_shard": ("fully_shard", (False,)),
    "recompute_layers": ("recompute_layers", (False,)),
    "recompute_in_turn": ("recompute_in_turn", (False,)),
    "unequal_shares": ("unequal_shares", (False,)),
    "recompute_microbatches": ("recompute_microbatches", (False,)),
    "offload": ("offload", (False,)),
}
"""Per decision its option, and the values that leave it out, the first of which closes it.

In the order in which their parts of the search take turns.
"""

_HERE = Path(__file__).parent


@cache
def found(part: str = "option") -> tuple[str, ...]:
    """The decisions that are there and have such a module."""
    is_file = {name: part == "option" and (_HERE / f"{name}.py").exists() for name in KNOWN}
    return tuple(name for name in KNOWN if is_file[name] or (_HERE / name / f"{part}.py").exists())


def part_of(name: str, part: str) -> ModuleType:
    """A module of a decision that is there."""
    return import_module(f"{__name__}.{name}.{part}" if (_HERE / name).is_dir() else f"{__name__}.{name}")


@cache
def installed() -> dict[str, Decision]:
    """By the option that asks for it, every decision that is there."""
    return {KNOWN[name][0]: part_of(name, "option").DECISION for name in found()}


def asked(options: object) -> Iterator[OpenDecision]:
    """The decisions that some options ask for; ValueError if one is not there."""
    for name, (option, closed) in KNOWN.items():
        if (value := getattr(options, option)) not in closed:
            if option not in installed():
                raise ValueError(
                    f"options: {option} = {text_of(value)}, but planner/decisions/{name} is not installed; leave "
                    "the option out, or install the whole package"
                )
            yield OpenDecision(option, value, closed[0], installed()[option])


def refuse(options: object) -> None:
    """ValueError if what is asked for is not there, or excluded by another option."""
    for each in asked(options):
        each.refuse(options)


def require(options: object, cluster: Any) -> None:
    """ValueError if a cluster lacks what is asked for needs."""
    for each in asked(options):
        if each.decision.sent_beside and not cluster.overlap:
            raise ValueError(
                f"problem: overlap = false with {each.option}, under which {each.decision.sent_beside}; set overlap to "
                f"true, or leave {each.option} out"
            )
        if each.decision.require is not None:
            each.decision.require(cluster)


def holding_bounds(options: object) -> frozenset[str] | None:
    """The kinds of lower bounds that hold for all plans that some options allow; None: all kinds."""
    limits = [each.decision.bounds for each in asked(options) if each.decision.bounds is not None]
    return frozenset.intersection(*limits) if limits else None


def modules(part: str, options: object | None = None) -> Iterator[ModuleType]:
    """A module of all decisions that are there and have it, or of those that some options ask for."""
    chosen = None if options is None else {each.option for each in asked(options)}
    return (part_of(name, part) for name in found(part) if chosen is None or KNOWN[name][0] in chosen)
