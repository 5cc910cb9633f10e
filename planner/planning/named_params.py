"""Search parameters by name, as people type them and evidence states them (`multistart.round_ticks`); what each is.

A part of the search that is left out has a name as well: `without.order_search`, whose value is 1.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from planner.planning.planning_params import PARTS, SearchParams
from profiles.documents.class_schema import field_docstrings

_WITHOUT = "without"
_PART_NAMES = {f"{_WITHOUT}.{part.lower().replace(' ', '_').replace('-', '_')}": part for part in PARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamDescription:
    """One parameter, as its class describes it."""

    name: str
    """`group.field`."""
    default: Any
    """What it is if nobody says otherwise."""
    allowed: str
    """The range of a number, or of every number of a list."""
    meaning: str
    """Its unit and what it does."""


def parse_assignments(assignments: Iterable[str]) -> SearchParams:
    """The parameters that NAME=VALUE change; VALUE is a number, or a list as JSON has it.

    Raises ValueError that names the assignment and the remedy.
    """
    changes = dict[str, object]()
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        try:
            changes[name] = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(
                f"search parameter {name[:60]} = {value[:60]!r} is neither a number nor a list; write e.g. "
                "multistart.round_ticks=4000000 or listed.depths=[1,2]"
            ) from None
    return params_with(changes)


def params_with(changes: Mapping[str, object]) -> SearchParams:
    """The default parameters but for these, by `group.field`: what a plan's `evidence.search_params` states.

    Raises ValueError for names that do not exist, as of releases that had more, and values that will not do.
    """
    kinds, groups, without = _kinds(), dict[str, dict[str, object]](), list[str]()
    for name, value in changes.items():
        group, _, own = name.partition(".")
        if group == _WITHOUT:
            without.append(_part(name, value))
            continue
        if group not in kinds:
            raise ValueError(f"search parameter {name[:60]!r} is unknown; choose from the groups {', '.join(kinds)}")
        known = [each.name for each in fields(kinds[group])]
        if own not in known:
            listed = ", ".join(f"{group}.{each}" for each in known)
            raise ValueError(f"search parameter {name[:60]!r} is unknown; choose from {listed}")
        groups.setdefault(group, {})[own] = _frozen(value)
    own_groups: dict[str, Any] = {group: kinds[group](**values) for group, values in groups.items()}
    return SearchParams(**own_groups, without=tuple(without))


def changed_params(params: SearchParams) -> dict[str, Any]:
    """What differs from the defaults, by `group.field`, with lists for tuples."""
    standard = SearchParams()
    changed = {
        f"{group}.{each.name}": _plain(getattr(own, each.name))
        for group in _kinds()
        for own, usual in [(getattr(params, group), getattr(standard, group))]
        for each in fields(own)
        if getattr(own, each.name) != getattr(usual, each.name)
    }
    return changed | {name: 1 for name, part in _PART_NAMES.items() if not params.has(part)}


@cache
def describe_params() -> tuple[ParamDescription, ...]:
    """All parameters, group by group in the order of a run's classes."""
    return tuple(_describe())


def _describe() -> Iterator[ParamDescription]:
    for group, kind in _kinds().items():
        hints, said = get_type_hints(kind, include_extras=True), dict(field_docstrings(kind))
        for each in fields(kind):
            yield ParamDescription(
                name=f"{group}.{each.name}",
                default=_plain(each.default),
                allowed=_range(hints[each.name]),
                meaning=" ".join(said[each.name].split()),
            )


def _kinds() -> dict[str, Any]:
    """The groups and their classes."""
    return {name: kind for name, kind in get_type_hints(SearchParams).items() if is_dataclass(kind)}


def _part(name: str, value: object) -> str:
    """The part of the search that a name leaves out."""
    if name not in _PART_NAMES:
        raise ValueError(f"search parameter {name[:60]!r} is unknown; choose from {', '.join(_PART_NAMES)}")
    if value != 1 or isinstance(value, bool):
        raise ValueError(f"search parameter {name} = {repr(value)[:60]} is not allowed; give 1, or leave it out")
    return _PART_NAMES[name]


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _plain(value: object) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _range(kind: Any) -> str:
    """The range that a type has."""
    if get_origin(kind) is tuple:
        ranges = dict.fromkeys(_range(each) for each in get_args(kind) if each is not Ellipsis)
        return "; ".join(ranges)
    if get_origin(kind) in (Union, UnionType):
        return f"{_range(get_args(kind)[0])}, or none"
    _, (least, most) = get_args(kind)
    return f"{_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
