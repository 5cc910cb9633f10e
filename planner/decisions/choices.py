"""What users and programs choose of the decisions that are there: switches, what comes with them, what stays closed."""

from collections.abc import Collection, Mapping
from typing import Any

from planner.decisions import KNOWN, installed
from planner.decisions.decision import Switch, text_of


def closed(option: str) -> str:
    """The option as it stands where its decision is left out, such as `unequal_shares = false`."""
    return f"{option} = {text_of(dict(KNOWN.values())[option][0]).replace('None', 'null')}"


def closed_but(taken: Collection[str]) -> dict[str, object]:
    """The options that leave all freedoms out but some."""
    freedoms = {option for option, each in installed().items() if each.is_freedom} - set(taken)
    return {option: closed[0] for option, closed in KNOWN.values() if option in freedoms}


def switches() -> dict[str, Switch]:
    """By the option that each sets: switches of the command line."""
    return {option: each.switch for option, each in installed().items() if each.switch is not None}


def implied(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options that those asked for on the command line need, and that nobody states there."""
    needed = (each for option in changes if option in installed() for each in installed()[option].excludes)
    return {each.option: each.instead for each in needed if each.is_implied and each.option not in changes}


def opened(profile: object, stated: Mapping[str, Any], *, has_one_size: bool) -> dict[str, Any]:
    """The decisions that a profile states costs for, but for those that are stated, or that what is stated excludes."""
    found = {
        option: each.opened(profile)
        for option, each in installed().items()
        if each.opened is not None
        and option not in stated
        and (has_one_size or not each.one_size_only)
        and not any(stated.get(other.option, ...) == other.value for other in each.excludes)
    }
    return {option: value for option, value in found.items() if value not in dict(KNOWN.values())[option]}
